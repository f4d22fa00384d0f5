//! Sagas, on each database.

#[path = "../store/harness.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod harness;

mod basics;
mod crash;
mod lost;
mod outages;
mod people;
mod script;
mod time;
mod transaction;
