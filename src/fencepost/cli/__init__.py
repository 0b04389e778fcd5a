"""The command line. A command is: parse, call, render. One file a group of commands; `main.py` puts them together."""
