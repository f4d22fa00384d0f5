//! Keys are texts with expressions over the arguments.

#![allow(unused_variables)]

use redrive::retryable;

#[retryable(key = "pay-{order")]
async fn unclosed(order: u64) -> Result<(), String> {
    Ok(())
}

#[retryable(key = "pay-order}")]
async fn unopened(order: u64) -> Result<(), String> {
    Ok(())
}

#[retryable(key = "pay-{order.}")]
async fn broken(order: u64) -> Result<(), String> {
    Ok(())
}

#[retryable(key = order)]
async fn unquoted(order: u64) -> Result<(), String> {
    Ok(())
}

fn main() {}
