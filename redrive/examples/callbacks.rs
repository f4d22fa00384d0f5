//! What happens after: one call is told of the success, another of the final failure, each durably.
//!
//! ```sh
//! cargo run --example callbacks
//! ```

use redrive::testing::Testing;
use redrive::{FinalFailure, Succeeded, retryable};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Parcel {
    tracking: String,
}

#[derive(Debug, thiserror::Error)]
#[error("no carrier goes to {0}")]
struct NoCarrier(String);

#[retryable(max_attempts = 3, on_success = tell_customer, on_final_failure = refund)]
async fn ship(order: u64, to: &str) -> Result<Parcel, NoCarrier> {
    if to == "the moon" { Err(NoCarrier(to.into())) } else { Ok(Parcel { tracking: format!("T{order}") }) }
}

#[retryable]
async fn tell_customer(shipped: &Succeeded<Parcel>) -> Result<(), std::io::Error> {
    println!("task {} succeeded at attempt {}: track {}", shipped.task_id, shipped.attempt, shipped.result.tracking);
    Ok(())
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Shipment {
    order: u64,
    to: String,
}

#[retryable]
async fn refund(failure: &FinalFailure<Shipment>) -> Result<(), std::io::Error> {
    println!("order {} is refunded: {:?} after {} tries", failure.params.order, failure.reason, failure.attempts);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let redrive = Testing::new().await;
    let parcel = redrive.call(ship(1, "Oslo")).await?;
    println!("shipped as {}", parcel.tracking);
    println!("{}", redrive.call(ship(2, "the moon")).await.expect_err("no carrier goes there"));
    // The callback of order 1, two more tries for order 2, and its callback.
    anyhow::ensure!(redrive.drain().await == 4);
    Ok(())
}
