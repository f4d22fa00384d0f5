//! The engine as a whole, on each database: real nodes, real handlers, real time.

#[path = "../store/harness.rs"]
#[allow(dead_code, reason = "shared with the store's suite")]
mod harness;

mod cut_off;
mod ends;
mod execution;
mod gates;
mod leases;
mod limits;
mod nodes;
mod paces;
mod parts;
mod proxy;
