//! Being one node among several: who is alive, who scans what, who may be declared dead.
//!
//! *State.* A [`Membership`]: our number, and the moment until which we may work. A [`Watch`]: for every other node the beat
//! that we saw last, and since when it has stood still.
//!
//! *Invariants.* We may work until (the instant before we sent our last successful beat) + lease − margin, by our own clock,
//! which counts suspended time. We fence another node only after we have seen its beat stand still over reads that all
//! succeeded, for the longer of two leases: ours, and the one in its row. It stopped working before that. A node that finds
//! itself fenced, or not in the node table, or finds another node there under its number, drops everything and takes a new
//! number.
//!
//! *Different leases.* A node's lease is written into its row together with its number, before its first beat, and never
//! changes under that number: `engine.lease` takes effect at the next start. So the row is never behind the lease that the
//! node works by, and nodes can be restarted one by one with a longer or a shorter lease. Only the lease bounds how long a
//! node may work; `margin` and `beat_interval` are the node's own affair, since a watcher waits for a lease and never counts
//! missed beats. Watchers with different leases fence the same node at different times, each of them after it has stopped. A
//! row of an older build states no lease (0). Then only the watcher's own lease counts, so leases may differ only when all
//! nodes state theirs.
//!
//! *Failure.* After a database outage nobody's beat has moved, and everybody begins to watch anew, so nobody is fenced for the
//! outage. Views may disagree for a while about who scans which shard: then two nodes try to claim the same tasks, and the
//! compare-and-set lets one of them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Stopwatch, Timestamp};
use crate::id::SHARDS;
use crate::store::Node;
use crate::task::{Lane, NodeNumber};

/// Our number and our right to work.
#[derive(Debug)]
pub(crate) struct Membership {
    number: AtomicI64,
    /// When we took it: milliseconds, as in our row.
    since: AtomicI64,
    clock: Stopwatch,
    /// Milliseconds on `clock`.
    until: AtomicU64,
}

impl Membership {
    pub(crate) fn new() -> Self {
        let (number, since) = (AtomicI64::new(0), AtomicI64::new(0));
        Self { number, since, clock: Stopwatch::start(), until: AtomicU64::new(0) }
    }

    pub(crate) fn number(&self) -> NodeNumber {
        NodeNumber(self.number.load(Ordering::Acquire))
    }

    /// Takes a new number, which has no right to work until it beats.
    pub(crate) fn renumber(&self, number: NodeNumber, now: Timestamp) {
        self.until.store(0, Ordering::Release);
        self.since.store(now.as_millis(), Ordering::Release);
        self.number.store(number.0, Ordering::Release);
    }

    /// Whether this node is we, alive. A database that has gone back in time gives numbers out again.
    pub(crate) fn is(&self, node: &Node) -> bool {
        let since = self.since.load(Ordering::Acquire);
        (node.number, node.started_at.as_millis()) == (self.number(), since) && !node.dead
    }

    /// The instant to note before a beat is sent.
    pub(crate) fn instant(&self) -> Duration {
        self.clock.elapsed()
    }

    /// A beat that was sent at `sent` has succeeded.
    pub(crate) fn extend(&self, sent: Duration, lease: Duration, margin: Duration) {
        let until = (sent + lease).saturating_sub(margin);
        self.until.fetch_max(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    /// Whether we may work now.
    pub(crate) fn may_work(&self) -> bool {
        self.clock.elapsed().as_millis() < u128::from(self.until.load(Ordering::Acquire))
    }

    /// The moment until which we may work, in milliseconds of our clock.
    #[cfg(test)]
    pub(crate) fn until(&self) -> u64 {
        self.until.load(Ordering::Acquire)
    }

    pub(crate) fn revoke(&self) {
        self.until.store(0, Ordering::Release);
    }
}

/// What we have seen of the others' beats.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Of each node its beat, and since when it is that.
    seen: HashMap<NodeNumber, (i64, Duration)>,
    /// When we looked last.
    looked: Duration,
    /// Nodes whose lease was reported as different from ours.
    reported: HashSet<NodeNumber>,
}

impl Watch {
    /// Takes note of a reading at `now` (by our monotonic clock). Returns the nodes whose beat has stood still for the longer of
    /// their lease and ours, with that beat.
    pub(crate) fn see(
        &mut self,
        nodes: &[Node],
        me: NodeNumber,
        now: Duration,
        lease: Duration,
    ) -> Vec<(NodeNumber, i64)> {
        // We did not look for long: perhaps we stood still, and everybody else with us.
        if now.saturating_sub(self.looked) > lease / 2 {
            self.seen.clear();
        }
        self.looked = now;
        let others: Vec<&Node> = nodes.iter().filter(|n| !n.dead && n.number != me).collect();
        self.seen.retain(|number, _| others.iter().any(|n| n.number == *number));
        let mut silent = Vec::new();
        for node in others {
            let seen = self.seen.entry(node.number).or_insert((node.beat, now));
            if seen.0 != node.beat {
                *seen = (node.beat, now);
            } else if now.saturating_sub(seen.1) >= lease.max(node.registration.lease) {
                silent.push((node.number, node.beat));
            }
        }
        silent
    }

    /// Returns the living nodes that state another lease than ours, each of them once. A number keeps its lease.
    pub(crate) fn other_leases<'a>(&mut self, nodes: &'a [Node], me: NodeNumber, lease: Duration) -> Vec<&'a Node> {
        let differs = |node: &&Node| {
            let stated = node.registration.lease;
            !node.dead && node.number != me && !stated.is_zero() && stated != lease
        };
        let others: Vec<&Node> = nodes.iter().filter(differs).collect();
        self.reported.retain(|number| others.iter().any(|node| node.number == *number));
        others.into_iter().filter(|node| self.reported.insert(node.number)).collect()
    }

    /// A reading failed: what was seen before says nothing about the time since.
    pub(crate) fn forget(&mut self) {
        self.seen.clear();
    }
}

/// The live nodes that handle a lane, sorted.
pub(crate) fn handling(nodes: &[Node], lane: Lane) -> Vec<NodeNumber> {
    let handles = |n: &&Node| !n.dead && !n.leaving && n.registration.methods.iter().any(|m| Lane::of(m) == lane);
    let mut numbers: Vec<NodeNumber> = nodes.iter().filter(handles).map(|n| n.number).collect();
    numbers.sort_unstable();
    numbers
}

/// Which shards of a lane are ours: of the live nodes that handle it, sorted, the one of rank r of n has the shards with
/// `shard % n == r`. Empty if we are not among them.
pub(crate) fn owned_shards(nodes: &[Node], me: NodeNumber, lane: Lane) -> Vec<u8> {
    let numbers = handling(nodes, lane);
    match numbers.iter().position(|n| *n == me) {
        Some(rank) => (0..SHARDS).filter(|shard| usize::from(*shard) % numbers.len() == rank).collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Registration;

    const LEASE: Duration = Duration::from_secs(10);

    fn node(number: i64, beat: i64, methods: &[&str]) -> Node {
        Node {
            number: NodeNumber(number),
            beat,
            beat_at: Timestamp::EPOCH,
            started_at: Timestamp::EPOCH,
            dead: false,
            leaving: false,
            knows_months: true,
            registration: Registration {
                methods: methods.iter().map(|m| (*m).to_owned()).collect(),
                ..Default::default()
            },
        }
    }

    #[test]
    fn a_node_is_silent_only_after_a_whole_lease_of_watching() {
        let (mut watch, me) = (Watch::default(), NodeNumber(1));
        let s = Duration::from_secs;
        let nodes = |beat| [node(1, 0, &[]), node(2, beat, &[])];
        let mut see =
            |beat, from: u64, to: u64| (from..=to).flat_map(|at| watch.see(&nodes(beat), me, s(at), LEASE)).last();
        assert_eq!(see(7, 100, 109), None);
        assert_eq!(see(8, 110, 119), None, "it moved");
        assert_eq!(see(8, 120, 120), Some((NodeNumber(2), 8)));
        assert_eq!(see(9, 121, 122), None);
        assert_eq!(see(9, 140, 149), None, "nobody looked meanwhile: from the beginning");
        assert_eq!(see(9, 150, 150), Some((NodeNumber(2), 9)));
        watch.forget();
        assert!(watch.see(&nodes(9), me, s(151), LEASE).is_empty(), "an outage: from the beginning");
    }

    #[test]
    fn a_node_with_a_longer_lease_is_silent_only_after_its_own() {
        let (mut watch, me) = (Watch::default(), NodeNumber(1));
        let mut other = node(2, 7, &[]);
        other.registration.lease = Duration::from_secs(60);
        let mut see = |from: u64, to: u64| {
            (from..=to).flat_map(|at| watch.see(&[other.clone()], me, Duration::from_secs(at), LEASE)).last()
        };
        assert_eq!(see(100, 159), None, "it may work for 60 s after its last beat");
        assert_eq!(see(160, 160), Some((NodeNumber(2), 7)));
    }

    /// Checks every pair of leases over a rolling change: nobody is fenced while it may still work.
    #[test]
    fn no_node_is_fenced_while_it_may_work_whatever_the_two_leases_are() {
        let s = Duration::from_secs;
        for (own, stated, beat) in [(10, 60, 25), (60, 10, 2), (10, 10, 2), (10, 11, 4), (2, 900, 300)] {
            let (mut watch, me) = (Watch::default(), NodeNumber(1));
            let mut other = node(2, 0, &[]);
            other.registration.lease = s(stated);
            // It beats four times and is cut off then. The watcher looks every second.
            let (last_beat, mut fenced) = (4 * beat, None);
            for at in 0..last_beat + 2_000 {
                other.beat = i64::try_from((at / beat).min(4)).unwrap();
                let silent = watch.see(&[other.clone()], me, s(at), s(own));
                fenced = fenced.or((!silent.is_empty()).then_some(at));
            }
            let fenced = fenced.unwrap();
            assert!(fenced >= last_beat + own.max(stated), "{own} {stated}: fenced at {fenced}");
            assert!(fenced <= last_beat + own.max(stated) + 1, "{own} {stated}: fenced at {fenced}, late");
        }
    }

    #[test]
    fn a_node_with_another_lease_is_reported_once() {
        let (mut watch, me) = (Watch::default(), NodeNumber(1));
        let with = |number, lease| {
            let mut node = node(number, 0, &[]);
            node.registration.lease = Duration::from_secs(lease);
            node
        };
        let mut reported = |nodes: &[Node]| -> Vec<i64> {
            watch.other_leases(nodes, me, LEASE).iter().map(|node| node.number.0).collect()
        };
        let all = [with(1, 60), with(2, 60), with(3, 10), with(4, 0), Node { dead: true, ..with(5, 7) }];
        assert_eq!(reported(&all), [2], "not ourselves, an equal one, an older build, a dead one");
        assert!(reported(&all).is_empty());
        assert_eq!(reported(&[with(2, 60), with(6, 30)]), [6]);
    }

    #[test]
    fn the_right_to_work_counts_from_before_the_beat_was_sent() {
        let me = Membership::new();
        assert!(!me.may_work());
        me.extend(me.instant(), LEASE, Duration::from_secs(2));
        assert!(me.may_work());
        me.renumber(NodeNumber(5), Timestamp::EPOCH);
        assert!(!me.may_work(), "a new number has not beaten");
        me.extend(Duration::ZERO, Duration::from_secs(2), Duration::from_secs(2));
        assert!(!me.may_work());
    }

    #[test]
    fn the_right_to_work_ends_during_a_suspension() {
        let mut me = Membership::new();
        me.extend(me.instant(), LEASE, Duration::from_secs(2));
        me.clock.suspend(Duration::from_secs(4));
        assert!(me.may_work());
        me.clock.suspend(Duration::from_secs(4));
        assert!(!me.may_work(), "others may have fenced it before it resumed");
    }

    #[test]
    fn a_node_knows_itself_by_its_number_and_since_when_it_has_it() {
        let me = Membership::new();
        me.renumber(NodeNumber(5), Timestamp::from_millis(7));
        let row = || Node { started_at: Timestamp::from_millis(7), ..node(5, 0, &[]) };
        assert!(me.is(&row()));
        assert!(!me.is(&Node { dead: true, ..row() }));
        assert!(!me.is(&Node { started_at: Timestamp::from_millis(8), ..row() }), "somebody else's");
    }

    #[test]
    fn every_shard_of_a_lane_has_one_owner_among_those_that_handle_it() {
        let nodes = [node(3, 0, &["a"]), node(5, 0, &["a", "b"]), node(9, 0, &["a"])];
        let mut all: Vec<u8> =
            [3, 5, 9].iter().flat_map(|n| owned_shards(&nodes, NodeNumber(*n), Lane::of("a"))).collect();
        all.sort_unstable();
        assert_eq!(all, (0..SHARDS).collect::<Vec<_>>());
        assert_eq!(owned_shards(&nodes, NodeNumber(5), Lane::of("b")).len(), 64);
        assert!(owned_shards(&nodes, NodeNumber(3), Lane::of("b")).is_empty());
        assert!(owned_shards(&nodes, NodeNumber(4), Lane::of("a")).is_empty());
    }

    /// Source 3: with 8 nodes a node touches one of two tables, with 9 both.
    #[test]
    fn source_3_eight_nodes_have_shards_of_one_parity_nine_of_both() {
        let nodes = |n: i64| (1..=n).map(|i| node(i, 0, &["a"])).collect::<Vec<_>>();
        let parities = |n| {
            let shards = owned_shards(&nodes(n), NodeNumber(1), Lane::of("a"));
            shards.iter().map(|s| s % 2).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((parities(8), parities(9)), (1, 2));
    }
}
