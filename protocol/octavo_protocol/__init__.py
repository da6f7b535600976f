"""What the parts of Octavo say to each other: names, load reports and block hashes. Typed, small, no I/O."""
