//! Who calls the fn as if it had no attribute is told what to do.

#![deny(unused_must_use)]

use redrive::retryable;

#[retryable]
async fn pay(order: u64) -> Result<(), String> {
    Ok(())
}

async fn awaits() {
    pay(5).await;
}

fn forgets() {
    pay(5);
}

fn main() {}
