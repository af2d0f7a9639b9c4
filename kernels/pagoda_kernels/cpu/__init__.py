"""The CPU's ops, in C++ (src/), built by `build`, packed for by `pack`, called through `native`."""
