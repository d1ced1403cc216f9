"""`python -m etcdmaint` is the command line."""

from etcdmaint.cli.start import main

if __name__ == "__main__":
    main()
