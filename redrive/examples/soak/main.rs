//! The soak: several node processes under load and faults, and a checker that proves afterwards that nothing was lost,
//! invented, or owned by two.
//!
//! ```text
//!   conductor --spawns, kills, freezes--> node 1 --proxy 1--+
//!       |                                 node 2 --proxy 2--+--> database, with triggers that write down every change
//!       |                                 node 3 --proxy 3--+
//!       +--cuts and holds the proxies, kills the server          each process writes a ledger outside of it
//! ```
//!
//! 1. The conductor makes a database and its witness ([`audit`]), and starts nodes that enqueue tasks with plans ([`plan`]).
//! 2. For the given time, faults come as the seed wants ([`faults`]).
//! 3. All is healed; the queue must run empty; the nodes end.
//! 4. The checker ([`checker`]) holds the ledgers and what the witness saw against each other.
//!
//! With `--churn` the number of nodes changes, and it is measured how soon all shards are somebody's again ([`shares`]).
//!
//! Run it by `scripts/soak`; see docs/operate/soak.md.

mod audit;
mod chance;
mod checker;
mod clock;
mod conductor;
mod database;
mod evidence;
mod failover;
mod faults;
mod ledger;
mod node;
mod plan;
mod producer;
mod proxy;
mod shares;
mod switch;

use std::process::ExitCode;

use clap::Parser as _;

/// Several nodes under load and faults, then proof that nothing was lost.
#[derive(Debug, clap::Parser)]
enum Soak {
    Run(conductor::Run),
    Node(node::Node),
}

/// 0: nothing was wrong. 1: the checker found something. 2: it could not be run.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let result = match Soak::parse() {
        Soak::Run(run) => run.run().await,
        Soak::Node(node) => node.run().await.map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("soak: {e:#}");
            ExitCode::from(2)
        }
    }
}
