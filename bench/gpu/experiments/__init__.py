"""The experiments: `items` of each module yields the rows that `lib.results.work` runs one after the other."""
