//! One suite for the three databases. Every test here runs on each of them, in a schema or file of its own:
//! `claim::postgres::two_claimers_on_the_same_rows_share_them`.
//!
//! `scripts/test` starts private servers and runs all of it. By hand: `eval "$(scripts/db env)"`, then `cargo test`. A
//! database that is not there is a failure; `--skip ::mysql::` leaves one out on purpose.

mod harness;

mod audit;
mod bulk;
mod callers_tx;
mod claim;
mod count;
mod dead;
mod explain;
mod glance;
mod history;
mod insert;
mod keys;
mod large;
mod list;
mod lost_answer;
mod months;
mod nodes;
mod open;
mod people;
mod remind;
mod rescue;
mod restart;
mod search;
mod server;
mod settle;
mod tokens;
mod undecodable;
