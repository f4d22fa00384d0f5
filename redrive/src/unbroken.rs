//! An act and its record, where they cannot be one transaction.
//!
//! Whoever asks over HTTP may hang up, or be answered that it takes too long: then their future is dropped, wherever it waits. What
//! was done by then would be done, and its record never written. So such an act runs in a task of its own, which is waited for.

use std::panic::resume_unwind;

use tracing::Instrument as _;

/// Runs an act to its end, also if nobody waits for it any more.
pub async fn unbroken<T: Send + 'static>(act: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(act.in_current_span()).await {
        Ok(came) => came,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => std::future::pending().await, // the runtime ends, and the caller with it
        },
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let ((begun, goes_on), (done, is_done)) = (oneshot::channel::<()>(), oneshot::channel());
        let act = unbroken(async {
            _ = goes_on.await;
            _ = done.send(());
        });
        assert!(act.now_or_never().is_none(), "given up in the middle");
        _ = begun.send(());
        is_done.await.unwrap();
    }
}
