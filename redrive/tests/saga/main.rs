//! Sagas, on each database.

#[path = "../store/harness.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod harness;

mod basics;
mod crash;
mod keys;
mod lost;
mod outages;
mod people;
mod script;
#[path = "../store/server.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod server;
mod switchover;
mod time;
mod transaction;
