//! Who calls the fn as if it had no attribute is told what to do.

#![deny(unused_must_use)]

use redrive::retryable;

#[retryable]
async fn pay(order: u64) -> Result<u64, String> {
    Ok(order)
}

fn main() {
    pay(5);
}
