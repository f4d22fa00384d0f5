//! Names that are not there, and things that are not what they should be.

#![allow(unused_variables)]

use redrive::retryable;

#[retryable(key = "pay-{ordre}")]
async fn misspelt(order: u64) -> Result<(), String> {
    Ok(())
}

async fn not_retryable() {}

#[retryable(on_success = not_retryable)]
async fn no_callback(a: &str) -> Result<(), String> {
    Ok(())
}

fn main() {}
