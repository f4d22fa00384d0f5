//! `redrive`: the server and the command line, one binary. All of it is in the library beside it.

use std::process::ExitCode;

/// A sixth of the engine's time would go into the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    redrive_server::run()
}
