mod database;
mod node;
mod properties;
mod protocol;

use stateright::{Checker, HasDiscoveries, Model};
use protocol::*;

fn env(name: &str, d: u8) -> u8 { std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(d) }

#[test]
fn explore() {
    let p = Protocol { tasks: env("TASKS",1) as usize, hands: env("HANDS",1) as usize, late: env("LATE",1) as usize, lease: env("LEASE",1), max_crashes: env("CR",2),
       faults: Faults{crashes: env("C",255), losses: env("L",255)}, mistake: None, asks: if env("REACH",0)==1 {Asks::Reach} else {Asks::Safety} };
    let t = std::time::Instant::now();
    let c = p.checker().threads(env("T",2) as usize).spawn_bfs().join();
    println!("{p:?}\nunique {} gen {} depth {} {:?} done {}", c.unique_state_count(), c.state_count(), c.max_depth(), t.elapsed(), c.is_done());
    for (k,v) in c.discoveries() { println!("{k}: {}", v.into_actions().len()); }
}
