//! `call()` and its strategies, callbacks and crashes, on each database. Tests named `source_2_…` are sentences of source 2.

#[path = "../store/harness.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod harness;

mod callbacks;
mod crash;
mod dedup;
mod dropped;
mod pay;
mod sealed;
mod stop;
mod strategies;
mod success;
mod words;
