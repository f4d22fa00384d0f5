//! What is done to the nodes, and when: a pure function of the seed.
//!
//! Kinds are drawn from a bag that is refilled when it is empty, so all of them occur. At every moment at least one node is
//! left in peace by what is done to single nodes, and every twenty seconds there are four in which nothing is wrong at all.

use std::fmt;

use crate::chance::Chance;

/// What the ledger says, before its number, of a server of a cluster that is dead from now on.
pub const SERVER_DEAD: &str = "dead is server";

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    Kill(usize),
    /// SIGTERM: it leaves in good order.
    Leave(usize),
    /// A new process, whose clock is off by so many milliseconds.
    Spawn(usize, i64),
    /// SIGSTOP and SIGCONT.
    Freeze(usize),
    Thaw(usize),
    /// All connections of a node are cut, and new ones refused.
    Cut(usize),
    /// Bytes are held back: of requests, of answers.
    Hold(usize, bool, bool),
    /// Answers are held back, and then cut off with their connections: what was asked for is done, and nobody is told.
    Lose(usize),
    Sever(usize),
    /// The node's wire is in order again, and delivers what was held.
    Mend(usize),
    /// The same for all nodes.
    CutAll,
    MendAll,
    /// The server is killed, or shut down, and started again.
    Crash,
    Restart,
    /// One server of a cluster is killed, and comes back.
    KillServer(usize),
    Rejoin(usize),
    /// The registry is killed, and started again.
    KillRegistry,
    StartRegistry,
    /// From now on there are to be so many nodes.
    Change(usize),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Kill(n) => write!(f, "kill -9 node {}", n + 1),
            Self::Leave(n) => write!(f, "SIGTERM node {}", n + 1),
            Self::Spawn(n, 0) => write!(f, "start node {}", n + 1),
            Self::Spawn(n, offset) => write!(f, "start node {}, clock off by {offset} ms", n + 1),
            Self::Freeze(n) => write!(f, "SIGSTOP node {}", n + 1),
            Self::Thaw(n) => write!(f, "SIGCONT node {}", n + 1),
            Self::Cut(n) => write!(f, "cut node {}", n + 1),
            Self::Hold(n, true, false) => write!(f, "hold requests of node {}", n + 1),
            Self::Hold(n, false, _) => write!(f, "hold answers to node {}", n + 1),
            Self::Hold(n, true, true) => write!(f, "hold all of node {}", n + 1),
            Self::Lose(n) => write!(f, "lose answers to node {}", n + 1),
            Self::Sever(n) => write!(f, "sever node {}", n + 1),
            Self::Mend(n) => write!(f, "mend node {}", n + 1),
            Self::CutAll => f.write_str("cut everybody"),
            Self::MendAll => f.write_str("mend everybody"),
            Self::Crash => f.write_str("kill -9 the database"),
            Self::Restart => f.write_str("restart the database"),
            Self::KillServer(n) => write!(f, "kill -9 server {}", n + 1),
            Self::Rejoin(n) => write!(f, "server {} rejoins", n + 1),
            Self::KillRegistry => f.write_str("kill -9 the registry"),
            Self::StartRegistry => f.write_str("start the registry"),
            Self::Change(nodes) => write!(f, "{nodes} nodes from now on"),
        }
    }
}

impl Action {
    /// What it is counted as; the end of a fault is not counted.
    pub fn kind(self) -> Option<&'static str> {
        Some(match self {
            Self::Kill(_) => "kills",
            Self::Leave(_) => "graceful stops",
            Self::Freeze(_) => "freezes",
            Self::Cut(_) => "cuts",
            Self::Hold(_, true, false) => "held requests",
            Self::Hold(_, false, _) => "held answers",
            Self::Hold(_, true, true) => "held both",
            Self::Lose(_) => "lost answers",
            Self::CutAll => "cuts of all",
            Self::Crash => "database kills",
            Self::Restart => "database restarts",
            Self::KillRegistry => "registry kills",
            Self::Change(_) => "changes of the number of nodes",
            Self::Spawn(_, offset) if offset != 0 => "clock offsets",
            Self::KillServer(_) => "server kills",
            Self::Spawn(..) | Self::Thaw(_) | Self::Sever(_) | Self::Mend(_) => return None,
            Self::MendAll | Self::StartRegistry | Self::Rejoin(_) => return None,
        })
    }

    fn is_global(self) -> bool {
        matches!(self, Self::CutAll | Self::Crash | Self::Restart)
    }

    pub fn is_about_server(self) -> bool {
        matches!(self, Self::Crash | Self::Restart | Self::KillServer(_) | Self::Rejoin(_))
    }

    /// What is done to the only server is not done to a cluster: its servers are killed one at a time.
    fn is_of_one_server(self) -> bool {
        matches!(self, Self::Crash | Self::Restart)
    }

    /// Whether it is done to no node.
    fn needs_no_node(self) -> bool {
        self.is_global() || self == Self::KillRegistry
    }

    fn needs_server(self) -> bool {
        matches!(self, Self::Cut(_) | Self::Hold(..) | Self::Lose(_)) || self.is_global()
    }
}

/// At this many milliseconds, this.
pub type Timed = (u64, Action);

const ROUND_MS: u64 = 20_000;
const CALM_MS: u64 = 4_000;
/// A node is given this long after a fault before the next one.
const RECOVERY_MS: u64 = 1_000;

/// What there is beside nodes that can have faults.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// How many servers the database has.
    pub servers: usize,
    /// There is a registry of its own.
    pub registry: bool,
    /// How long the nodes' leases are.
    pub lease_ms: u64,
}

/// All that happens in a run. Everything that begins also ends, before the run does.
pub fn schedule(seed: u64, run_ms: u64, nodes: usize, ground: Ground) -> Vec<Timed> {
    let mut planner = Planner {
        chance: Chance::new(seed, "faults"),
        bag: Vec::new(),
        busy_until: vec![0; nodes],
        all_busy_until: 0,
        ground,
        actions: kills_of_servers(run_ms, ground.servers),
    };
    let mut at = 2_000;
    while at < run_ms {
        // In a round of twenty seconds a fault must be over before the calm at its end.
        let latest = (at / ROUND_MS * ROUND_MS + ROUND_MS - CALM_MS).min(run_ms);
        planner.one_fault(at, latest);
        at += planner.chance.between(600, 2_000);
    }
    planner.actions.sort_by_key(|(at, _)| *at);
    planner.actions
}

/// Of a cluster: in the calm of every round a server dies, one after the other, the first one first. In the next calm, after a
/// round of other faults, it comes back, before the next one dies.
fn kills_of_servers(run_ms: u64, servers: usize) -> Vec<Timed> {
    let rounds = if servers > 1 { (run_ms / ROUND_MS).max(1) as usize } else { 0 };
    let calm = |round: usize| (round as u64 + 1) * ROUND_MS - CALM_MS;
    let of_round = |round: usize| {
        let server = round % servers;
        let killed = calm(round) + 2 * RECOVERY_MS;
        [(killed, Action::KillServer(server)), (calm(round + 1).min(run_ms.max(killed)), Action::Rejoin(server))]
    };
    (0..rounds).flat_map(of_round).collect()
}

/// How many nodes there are in each quarter of a run in which they come and go.
pub const CHURN: [usize; 4] = [1, 8, 9, 3];
/// No other fault so long before a change of their number, and after its last step: what comes of it is to be measured.
const BEFORE_MS: u64 = 5_000;
const AFTER_MS: u64 = 3_000;
/// Those who are killed are killed so long after others were told to leave.
const KILL_AFTER_MS: u64 = 4_000;

/// All that happens in such a run: the changes, and in each quarter faults among the nodes that there are.
pub fn churn(seed: u64, run_ms: u64, ground: Ground, calm: bool) -> Vec<Timed> {
    let quarter = run_ms / CHURN.len() as u64;
    let mut actions = Vec::new();
    for (i, nodes) in CHURN.into_iter().enumerate() {
        let from = quarter * i as u64;
        let changes = if i > 0 { change(CHURN[i - 1], nodes) } else { Vec::new() };
        // Others know of a kill a lease later.
        let is_done =
            changes.last().map_or(0, |(after, _)| if *after > 0 { after + ground.lease_ms } else { AFTER_MS });
        let before = if i + 1 < CHURN.len() { BEFORE_MS } else { 0 };
        actions.extend(changes.into_iter().map(|(after, action)| (from + after, action)));
        if !calm {
            let faults = schedule(seed + i as u64, quarter.saturating_sub(is_done + before), nodes, ground);
            actions.extend(faults.into_iter().map(|(at, action)| (from + is_done + at, action)));
        }
    }
    actions
}

/// Those who come all come at once; of those who go every other one leaves, and the others are killed a little later.
fn change(before: usize, nodes: usize) -> Vec<Timed> {
    let come = (before..nodes).map(|n| (0, Action::Spawn(n, 0)));
    let leave = (nodes..before).step_by(2).map(|n| (0, Action::Leave(n)));
    let die = (nodes..before).skip(1).step_by(2).map(|n| (KILL_AFTER_MS, Action::Kill(n)));
    [(0, Action::Change(nodes))].into_iter().chain(come).chain(leave).chain(die).collect()
}

struct Planner {
    chance: Chance,
    bag: Vec<usize>,
    busy_until: Vec<u64>,
    all_busy_until: u64,
    ground: Ground,
    actions: Vec<Timed>,
}

impl Planner {
    /// The first fault of the bag that can be over by `latest` and has a node; if there is none, nothing happens now.
    fn one_fault(&mut self, at: u64, latest: u64) {
        if self.bag.is_empty() {
            self.bag = (0..KINDS).collect();
            self.chance.shuffle(&mut self.bag);
        }
        if at < self.all_busy_until {
            return;
        }
        let node = self.free_node(at);
        for i in (0..self.bag.len()).rev() {
            let fault = self.fault(self.bag[i], node.unwrap_or(0));
            let (Some((_, first)), Some((lasts, _))) = (fault.first(), fault.last()) else { continue };
            let possible = at + lasts <= latest && (node.is_some() || first.needs_no_node());
            let servers = self.ground.servers;
            let never = (first.needs_server() && servers == 0)
                || (first.is_of_one_server() && servers > 1)
                || (*first == Action::KillRegistry && !self.ground.registry);
            if never {
                self.bag.remove(i);
            } else if possible {
                self.bag.remove(i);
                return self.happens(at, node, *first, &fault);
            }
        }
    }

    fn happens(&mut self, at: u64, node: Option<usize>, first: Action, fault: &[Timed]) {
        let until = at + fault.last().map_or(0, |(after, _)| *after) + RECOVERY_MS;
        match node {
            _ if first.is_global() => self.all_busy_until = until + RECOVERY_MS,
            _ if first.needs_no_node() => {} // the registry: others go on meanwhile
            Some(node) => self.busy_until[node] = until,
            None => {}
        }
        self.actions.extend(fault.iter().map(|(after, action)| (at + after, *action)));
    }

    /// A node with which all is well, if another one is left.
    fn free_node(&mut self, at: u64) -> Option<usize> {
        let mut free: Vec<usize> = (0..self.busy_until.len()).filter(|n| self.busy_until[*n] <= at).collect();
        self.chance.shuffle(&mut free);
        if free.len() >= 2 { free.pop() } else { None }
    }

    /// What happens, and how long after the fault's begin.
    fn fault(&mut self, kind: usize, node: usize) -> Vec<Timed> {
        let chance = &mut self.chance;
        let (short, middle) = (chance.between(100, 2_000), chance.between(500, 2_500));
        let lease = self.ground.lease_ms;
        let longer_than_lease = chance.between(lease * 6 / 5, lease * 2);
        let offset = chance.between(5_000, 30_000) as i64 * if chance.percent(50) { 1 } else { -1 };
        let hold = |requests, answers| {
            vec![(0, Action::Hold(node, requests, answers)), (longer_than_lease, Action::Mend(node))]
        };
        match kind {
            0 => vec![(0, Action::Kill(node)), (middle, Action::Spawn(node, 0))],
            1 => vec![(0, Action::Leave(node)), (middle, Action::Spawn(node, 0))],
            2 => vec![(0, Action::Kill(node)), (middle, Action::Spawn(node, offset))],
            3 => vec![(0, Action::Freeze(node)), (longer_than_lease, Action::Thaw(node))],
            4 => vec![(0, Action::Cut(node)), (short, Action::Mend(node))],
            5 => hold(false, true),
            6 => hold(true, true),
            7 => vec![(0, Action::CutAll), (short, Action::MendAll)],
            8 => vec![(0, Action::Crash)],
            9 => vec![(0, Action::Restart)],
            10 => vec![(0, Action::Lose(node)), (short, Action::Sever(node))],
            11 => vec![(0, Action::KillRegistry), (middle, Action::StartRegistry)],
            // What the run is most about: writes that arrive after their sender was declared dead.
            _ => hold(true, false),
        }
    }
}

const KINDS: usize = 14;
