"""Random cases by the thousand: what a number that stands for one finds can be found again."""
