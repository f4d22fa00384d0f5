//! What `#[retryable]` expands to. Not for use by hand: it changes without notice.

pub use inventory;
pub use serde;
pub use serde_json;
