//! How to test code that uses redrive: a clock that is moved by hand, tasks that run when they are told to, a database that
//! fails on purpose. This is a program; in a test it looks the same.
//!
//! ```sh
//! cargo run --example testing
//! ```

use redrive::testing::{Fault, Testing};
use redrive::{CallError, Context, assert_enqueued, retryable};

#[derive(Debug, thiserror::Error)]
#[error("the mailbox is full")]
struct Full;

#[retryable(max_attempts = 3)]
async fn welcome(cx: &Context<'_>, address: &str) -> Result<(), Full> {
    println!("try {} to greet {address}", cx.attempt());
    if cx.attempt() < 3 { Err(Full) } else { Ok(()) }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let redrive = Testing::new().await;

    // It fails, and is made good: two to three seconds later, then four to five.
    assert!(redrive.call(welcome("a@example.com")).await.unwrap_err().is_deferred());
    assert_enqueued!(redrive, welcome("a@example.com"));
    assert_eq!(redrive.advance("1s").await, 0);
    assert_eq!(redrive.advance("2s").await, 1);
    assert_eq!(redrive.advance("5s").await, 1);
    assert!(redrive.waiting().await.is_empty());

    // A commit whose answer is lost is not repeated blindly: one task, not two.
    redrive.faults().next_write(Fault::FailAfterCommit);
    redrive.enqueue(welcome("b@example.com")).await?;
    assert!(redrive.faults().are_spent());
    assert_eq!(redrive.waiting().await.len(), 1);
    redrive.drain().await;

    // A database that cannot be reached at all is never called "deferred".
    redrive.faults().set_down(true);
    let called = redrive.call(welcome("c@example.com")).await;
    assert!(matches!(called, Err(CallError::NotRecorded { .. })));
    println!("without a database: {}", called.unwrap_err());
    redrive.faults().set_down(false);
    Ok(())
}
