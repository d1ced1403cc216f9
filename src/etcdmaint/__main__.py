"""`python -m etcdmaint` is the command line."""

from etcdmaint.cli.main import main

if __name__ == "__main__":
    main()
