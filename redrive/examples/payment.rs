//! Source 2's payment: written down after any failure, at most five tries, exponential, within an hour and before the
//! order expires; a success is what the channel calls one.
//!
//! ```sh
//! cargo run --example payment
//! ```

use std::time::Duration;

use redrive::testing::Testing;
use redrive::{CallError, Context, ErrorKind, Timestamp, retryable};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    id: u64,
    cents: u64,
    expires: Timestamp,
}

#[derive(Debug, Serialize)]
struct Receipt {
    code: u16,
}

#[derive(Debug, thiserror::Error, ErrorKind)]
enum PayError {
    #[error("the channel did not answer")]
    Unreachable,
    #[error("the card was declined")]
    Declined,
    #[error(transparent)]
    Redrive(#[from] redrive::Error),
}

/// The payment channel: here, what it will answer.
struct Channel {
    answers: std::sync::Mutex<Vec<Result<u16, PayError>>>,
}

#[retryable(
    name = "pay",
    persist = on_failure,
    max_attempts = 5,
    backoff = exponential(initial = "2s", factor = 2, max = "5m"),
    jitter = "1s",
    max_duration = "1h",
    deadline = order.expires,
    no_retry_for(PayError::Declined),
    success_if = |receipt| receipt.code == 200,
    key = "pay-{order.id}",
    business("order", order.id),
)]
async fn pay(cx: &Context<'_>, order: &Order) -> Result<Receipt, PayError> {
    let channel = cx.state::<Channel>()?;
    // The key is the same in all tries: the channel will not charge twice.
    println!("try {} to charge {} for order {} as {:?}", cx.attempt(), order.cents, order.id, cx.key());
    let answer = channel.answers.lock().ok().and_then(|mut answers| answers.pop());
    answer.unwrap_or(Ok(200)).map(|code| Receipt { code })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The answers, last first.
    let answers = vec![Err(PayError::Declined), Ok(200), Ok(500), Err(PayError::Unreachable)];
    let redrive = Testing::with(|builder| builder.state(Channel { answers: answers.into() })).await;
    let order = |id| Order { id, cents: 4200, expires: redrive.now() + Duration::from_secs(1800) };

    let task_id = match redrive.call(pay(&order(1))).await {
        Err(CallError::Deferred { task_id, .. }) => task_id,
        other => anyhow::bail!("expected to be deferred: {other:?}"),
    };
    println!("order 1 is deferred as task {task_id}");
    let begun = redrive.now();
    let attempts = redrive.drain().await;
    println!("paid after {attempts} more tries, {:?} later", redrive.now().since(begun));
    anyhow::ensure!(attempts == 2 && redrive.waiting().await.is_empty());

    match redrive.call(pay(&order(2))).await {
        Err(CallError::Rejected { cause }) => println!("order 2 is rejected: {cause}"),
        other => anyhow::bail!("expected to be rejected: {other:?}"),
    }
    println!("order 3: {:?}", redrive.call(pay(&order(3))).await?);
    Ok(())
}
