//! Real time: the soak is about real processes, so here it is read and waited for. The offsets that are injected go into
//! redrive's own clock, never into this one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since 1970, by this machine: all processes of a run have the same.
#[expect(clippy::disallowed_methods, reason = "the soak runs in real time")]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "the soak runs in real time")]
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits so many milliseconds.
pub async fn pause_ms(ms: u64) {
    pause(Duration::from_millis(ms)).await;
}

/// Waits in a thread that may be blocked.
#[expect(clippy::disallowed_methods, reason = "the soak runs in real time")]
pub fn rest_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
