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
mod outage;
#[path = "../engine/proxy.rs"]
#[allow(dead_code, reason = "shared with the engine's suite")]
mod proxy;
mod routes;
#[path = "../notify/sink.rs"]
#[allow(dead_code, reason = "shared with the notices' suite")]
mod sink;
mod source_5;
