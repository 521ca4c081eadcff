"""What shows results: records of many runs, statistics, tables, figures."""
