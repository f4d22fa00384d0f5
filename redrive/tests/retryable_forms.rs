//! Strict lints, docs, other attributes, and a fn that lives in a fn.

#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    rust_2018_idioms,
    elided_lifetimes_in_paths
)]
#![forbid(unsafe_code)]

use redrive::{Context, Retryable, retryable};

/// Pays.
#[retryable(name = "pay", on_success = paid, key = "{order}")]
#[allow(clippy::unused_async)]
async fn pay(cx: &Context<'_>, order: &str, cents: u64) -> Result<(), std::io::Error> {
    let _ = (cx.attempt(), order, cents);
    Ok(())
}

#[retryable]
async fn paid(done: &redrive::Succeeded) -> redrive::Result<()> {
    let _ = done;
    Ok(())
}

#[retryable]
#[cfg(any())]
async fn not_here(order: &Missing) -> Missing {}

#[test]
fn strict_lints_let_it_pass_and_names_are_as_given() {
    #[retryable(name = "local")]
    async fn local(n: u8) -> Result<u8, String> {
        Ok(n)
    }
    let _ = (pay("a", 5), local(5));
    assert_eq!((<pay<'_> as Retryable>::METHOD, <local as Retryable>::METHOD), ("pay", "local"));
    assert!(<paid<'_> as Retryable>::METHOD.ends_with("::paid"));
}
