"""`python -m trnprof` is the command `trnprof`."""

from trnprof.cli import main

if __name__ == "__main__":
    main()
