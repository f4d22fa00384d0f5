//! The barrier for participants of sagas, on each database, with transactions that really run at once.

#[path = "../store/harness.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "shared with the store's suite")]
mod harness;

mod party;

mod interleaved;
mod isolation;
mod order;
mod table;
mod waiting;
