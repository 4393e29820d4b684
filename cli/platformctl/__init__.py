"""The command line `platformctl VERB [NAME] [-f FILE…]`. Verbs are in commands/, one file each."""
