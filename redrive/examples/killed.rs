//! A call that is in the middle of its first try, or has just been deferred, when its process is killed.
//!
//! ```sh
//! cargo run --example killed -- sqlite://pay.db always       # kill it with Ctrl-\ while it tries
//! cargo run --example killed -- sqlite://pay.db retry_only   # or after it was deferred
//! ```
//!
//! Whatever was written down is made good by the next process that handles `pay`: after `always` also the try that was cut
//! off. The tests kill this program in just this way, on every database.

use std::time::Duration;

use redrive::{Backoff, Context, Engine, Jitter, Persist, Policy, Retryable, Store};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Pay {
    order: u64,
    #[serde(skip)]
    always: bool,
}

impl Retryable for Pay {
    const METHOD: &'static str = "pay";
    type Output = ();
    type Error = std::io::Error;

    async fn execute(&self, _: &Context<'_>) -> std::io::Result<()> {
        println!("trying to pay order {}", self.order);
        if self.always {
            std::future::pending::<()>().await;
        }
        Err(std::io::ErrorKind::TimedOut.into())
    }

    fn persist(&self) -> Option<Persist> {
        self.always.then_some(Persist::Always)
    }

    fn policy(&self, defaults: Policy) -> Policy {
        // Long enough for this process to be killed before it tries again itself.
        Policy { backoff: Backoff::fixed(Duration::from_secs(2)), jitter: Jitter::None, ..defaults }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "sqlite://killed.db".into());
    let always = arguments.next().is_some_and(|strategy| strategy == "always");
    let redrive = Engine::builder(Store::open(&url).await?).handler::<Pay>().start().await?;
    match redrive.call(Pay { order: 7, always }).await {
        Ok(()) => println!("paid"),
        Err(why) => println!("{why}"),
    }
    std::future::pending().await
}
