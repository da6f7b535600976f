"""What is measured: `items` of each module gives the rows that `lib.results.work` does one after the other."""
