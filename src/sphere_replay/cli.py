"""stub"""


def main() -> None: ...
