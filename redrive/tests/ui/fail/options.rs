//! All that is wrong with the options is told at once, and the fn is there nevertheless.

#![allow(unused_variables)]

use redrive::retryable;

#[retryable(
    retries = 5,
    max_attempts = 0,
    backoff = exponential(initial = "2s", factor = 0.5),
    jitter = "5 parsecs",
    timeout = 10,
    persist = sometimes,
    retry_for(),
    no_retry_for("not a kind"),
    success_if = 200,
    business("order"),
    priority = high,
    notify(3),
    on_exhausted = explode,
    on_crash,
    keep = true,
    timeout = "10s",
)]
async fn pay(order: u64) -> Result<(), std::io::Error> {
    Ok(())
}

#[retryable(backoff = sometimes)]
async fn other() -> Result<(), std::io::Error> {
    Ok(())
}

fn main() {
    let _ = (pay(5), other());
}
