"""The contract between the parts of Octavo: names, load reports and block hashes. Typed, small, no I/O."""
