//! Guards over business tables, on each database.

#[path = "../store/harness.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod harness;

mod bad;
mod bills;
mod columns;
mod explain;
mod mail;
mod nodes;
mod routes;
#[path = "../notify/sink.rs"]
#[allow(dead_code, reason = "shared with the notices' suite")]
mod sink;
mod source_5;
