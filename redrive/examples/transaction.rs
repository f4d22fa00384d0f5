//! A task in the application's own transaction: it exists if, and only if, the business rows do.
//!
//! ```sh
//! cargo run --example transaction
//! ```

use redrive::testing::Testing;
use redrive::{assert_enqueued, retryable};

#[retryable(key = "invoice-{order}")]
async fn send_invoice(order: u64) -> Result<(), std::io::Error> {
    println!("invoice of order {order} sent");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let redrive = Testing::new().await;

    // Given up: neither the order nor its invoice.
    let mut tx = redrive.store().begin().await?;
    // Here the application writes its own rows, on `tx.connection()`.
    redrive.enqueue_in(&mut tx, send_invoice(1)).await?;
    tx.rollback().await?;
    anyhow::ensure!(redrive.waiting().await.is_empty());

    // Committed: both. It runs at once, on whichever node.
    let enqueued = redrive.transaction(async |tx| redrive.enqueue_in(tx, send_invoice(2)).await).await?;
    println!("order 2 is there, and so is task {}", enqueued.id);
    assert_enqueued!(redrive, send_invoice(2));
    anyhow::ensure!(redrive.run_due().await == 1);
    Ok(())
}
