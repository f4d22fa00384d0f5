//! Retries in memory only: for reads, caches and whatever may be lost. The same policies, no database touched.
//!
//! ```sh
//! cargo run --example inline_only
//! ```

use std::sync::atomic::{AtomicU32, Ordering};

use redrive::testing::Testing;
use redrive::{Context, retryable};

#[derive(Default)]
struct Exchange {
    asked: AtomicU32,
}

#[derive(Debug, thiserror::Error)]
enum RateError {
    #[error("the exchange is busy")]
    Busy,
    #[error(transparent)]
    Redrive(#[from] redrive::Error),
}

#[retryable(persist = never, max_attempts = 4, backoff = fixed("10ms"), jitter = none)]
async fn rate(cx: &Context<'_>, currency: &str) -> Result<f64, RateError> {
    let busy = cx.state::<Exchange>()?.asked.fetch_add(1, Ordering::Relaxed) < 2;
    println!("try {} for {currency}: {}", cx.attempt(), if busy { "busy" } else { "answered" });
    if busy { Err(RateError::Busy) } else { Ok(1.0842) }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let redrive = Testing::with(|builder| builder.state(Exchange::default())).await;
    println!("1 EUR = {} USD", redrive.call(rate("EUR")).await?);
    anyhow::ensure!(redrive.waiting().await.is_empty(), "nothing was written");
    Ok(())
}
