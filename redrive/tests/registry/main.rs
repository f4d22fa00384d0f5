//! Nacos as the registry: real engines, a real server of its protocol, real connections that break.

#[path = "../store/harness.rs"]
#[allow(dead_code, unused_macros, unused_imports, reason = "shared with the store's suite")]
mod harness;

mod nacos;
mod outages;
mod server;
