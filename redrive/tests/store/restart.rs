//! Killed under load: what was acknowledged is there, and there once.
//!
//! *The story.* Four workers go round and round, each in a lane of its own. A round writes a batch down, half of it with
//! keys, claims it and settles it: a third is done, a third waits again, a third is dead. Before and after each of these
//! changes the worker leaves a [`Note`] outside of the database. Meanwhile the server of PostgreSQL, MariaDB or MySQL is killed
//! (SIGKILL) and started again on the same data, several times, and the store's own repetition carries the workers over
//! it. SQLite has no server: there the process that does the work is killed, and another goes on in the same file.
//! The moments are given by the workers' progress: after so many notes, whatever the others are at.
//!
//! *What must hold.* The last note of a batch says where each of its tasks may be ([`Note::allows`]), and there it is: in
//! one place, once, under the id that was given for it. Nothing else is there. Every living task with a key holds that
//! key, and nobody else holds one.
//!
//! *Slack.* Of a change that was begun and not acknowledged (its process was killed, or the call failed for a passing
//! reason after all) it is not known whether it was made: either is right, task by task. There is no other.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive::store::{DeadFilter, Settle, Settled, TaskFilter};
use redrive::{Failure, NewTask, NodeNumber, Outcome, Status, Store, StoreOptions, Task, TaskId, settle};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::harness::*;
use crate::server::Server;

mod postgres {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
        super::kill_the_server(crate::harness::Kind::Postgres).await;
    }
}

mod mysql {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
        super::kill_the_server(crate::harness::Kind::MySql).await;
    }
}

mod sqlite {
    /// The test is its own victim: called with the URL of a database it works there until it is killed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
        match std::env::var(super::VICTIM) {
            Ok(url) => super::work_until_killed(url).await,
            Err(_) => super::kill_the_process().await,
        }
    }
}

/// The variable that makes the SQLite test the victim, and the name under which it calls itself.
const VICTIM: &str = "REDRIVE_TEST_VICTIM";
const VICTIM_TEST: &str = "restart::sqlite::nothing_acknowledged_is_lost_when_the_process_is_killed";

const WORKERS: usize = 4;
const BATCH: usize = 50;

/// How many notes to wait for before each kill: from 5 to 65, so that they fall on different steps.
fn kills(kind: Kind) -> impl Iterator<Item = usize> {
    let kills = if kind == Kind::Postgres { 6 } else { 20 }; // it may take seconds to come back
    (0..kills).map(|kill| 5 + kill * 37 % 61)
}

async fn kill_the_server(kind: Kind) {
    _ = server_url(kind); // the programs are here, or this says what to do: a test must not install them
    let server = Server::start_new(kind);
    let db = Db::at(kind, fresh_url_on(kind, &server.url()).await, patient()).await;
    let (tell, mut notes) = tokio::sync::mpsc::unbounded_channel();
    let stop = Arc::new(AtomicBool::new(false));
    // The receiver may be gone only when the test has failed already.
    let workers = start_workers(&db.store, &stop, move |note| _ = tell.send(note)).await;
    let mut ledger = Ledger::default();
    for (kill, progress) in kills(kind).enumerate() {
        ledger.hear(&mut notes, progress).await;
        // This blocks, on the test's own thread; the workers have others.
        server.kill(kill % 3 < 2);
        server.start();
        ledger.catch_up(&mut notes);
    }
    ledger.hear(&mut notes, 10 * WORKERS).await;
    stop.store(true, Ordering::Relaxed);
    workers.join_all().await;
    ledger.catch_up(&mut notes);
    ledger.check(&db).await;
}

async fn kill_the_process() {
    let (url, _dir) = fresh_url(Kind::Sqlite).await;
    let mut ledger = Ledger::default();
    for progress in kills(Kind::Sqlite) {
        Victim::start(&url).kill_after(progress, &mut ledger);
    }
    ledger.check(&Db::at(Kind::Sqlite, url, patient()).await).await;
}

async fn work_until_killed(url: String) {
    let db = Db::at(Kind::Sqlite, url, patient()).await;
    let workers = start_workers(&db.store, &Arc::default(), |note| note.print()).await;
    workers.join_all().await;
}

/// The store itself is to ride over a restart.
fn patient() -> StoreOptions {
    let mut options = options();
    options.retry_for = Duration::from_secs(60);
    options
}

/// What has been begun with a batch, or acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    Inserting,
    Inserted,
    Settling,
    Settled,
}

/// How far a batch is. The last one counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    lane: String,
    round: u32,
    step: Step,
    /// Under which ids its tasks were acknowledged.
    ids: Vec<TaskId>,
}

/// Where a task can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// In the task table, pending or claimed, not tried yet.
    New,
    /// In the task table, waiting after one failure.
    Again,
    /// Among the dead letters.
    Dead,
}

impl Place {
    /// Where the task goes when it is settled, and by what outcome.
    fn after_settling(n: usize) -> (Self, Outcome) {
        match n % 3 {
            0 => (Self::Nowhere, Outcome::Done),
            1 => (Self::Again, timeout()),
            _ => (Self::Dead, Outcome::Fatal(Failure::retry("broken", "no use"))),
        }
    }

    /// Where a task is, by the rows that there are of it.
    fn of(waiting: Option<&Task>, dead: Option<&Task>) -> Self {
        match (waiting, dead) {
            (None, None) => Self::Nowhere,
            (Some(t), None) if t.attempts == 0 => Self::New,
            (Some(t), None) if t.attempts == 1 && t.status == Status::Pending => Self::Again,
            (None, Some(t)) if t.attempts == 1 => Self::Dead,
            other => panic!("a task is where none should be: {other:?}"),
        }
    }
}

impl Note {
    /// Where task `n` of the batch may be.
    fn allows(&self, n: usize) -> Vec<Place> {
        let (settled, _) = Place::after_settling(n);
        match self.step {
            Step::Inserting => vec![Place::Nowhere, Place::New],
            Step::Inserted => vec![Place::New],
            Step::Settling => vec![Place::New, settled],
            Step::Settled => vec![settled],
        }
    }

    /// What a task is known by: no two have the same params.
    fn params(&self, n: usize) -> String {
        format!("\"{}/{}/{n}\"", self.lane, self.round)
    }

    fn new_task(&self, n: usize) -> NewTask {
        let new = NewTask::from_json(&*self.lane, self.params(n)).unwrap();
        if n.is_multiple_of(2) { new } else { new.no_key() }
    }

    /// For whoever reads our output: in one piece, on a line of its own whatever the test runner has printed before.
    fn print(&self) {
        let line = format!("\n{}\n", serde_json::to_string(self).unwrap());
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("whoever started us is gone");
    }

    /// From a line of output, if that is what it is. A line without its end is not: the writer was killed.
    fn read(line: &str) -> Option<Self> {
        line.strip_suffix('\n').and_then(|line| serde_json::from_str(line).ok())
    }
}

async fn start_workers(
    store: &Store,
    stop: &Arc<AtomicBool>,
    tell: impl Fn(Note) + Clone + Send + Sync + 'static,
) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let node = node(store).await;
        // The number was never given out before, so neither was the lane.
        let worker = Worker { store: store.clone(), node, lane: format!("lane-{node}"), tell: tell.clone() };
        workers.spawn(worker.run(stop.clone()));
    }
    workers
}

struct Worker<T> {
    store: Store,
    node: NodeNumber,
    lane: String,
    tell: T,
}

impl<T: Fn(Note) + Send + Sync> Worker<T> {
    async fn run(self, stop: Arc<AtomicBool>) {
        let rounds = (0..).take_while(|_| !stop.load(Ordering::Relaxed));
        for round in rounds {
            match self.round(round).await {
                Ok(()) => {}
                // The last note stays as it is: begun, not acknowledged.
                Err(e) if e.is_transient() => eprintln!("round {round} of {} is left open: {e}", self.lane),
                Err(e) => panic!("a restart is a passing reason, but round {round} of {} failed: {e:?}", self.lane),
            }
        }
    }

    async fn round(&self, round: u32) -> redrive::Result<()> {
        let mut note = Note { lane: self.lane.clone(), round, step: Step::Inserting, ids: Vec::new() };
        (self.tell)(note.clone());
        note.ids = self.insert(&note).await?;
        note.step = Step::Inserted;
        (self.tell)(note.clone());
        let tasks = self.claim(&note).await?;
        note.step = Step::Settling;
        (self.tell)(note.clone());
        self.settle(tasks).await?;
        note.step = Step::Settled;
        (self.tell)(note);
        Ok(())
    }

    async fn insert(&self, note: &Note) -> redrive::Result<Vec<TaskId>> {
        let tasks = (0..BATCH).map(|n| note.new_task(n)).collect();
        let answers = self.store.insert(tasks, NOW).await?;
        assert_eq!(answers.len(), BATCH);
        assert!(answers.iter().all(|a| !a.existed), "only we know these keys: {answers:?}");
        Ok(answers.into_iter().map(|a| a.id).collect())
    }

    /// The tasks of the batch, in its order. What a round that was left open has left is passed over.
    async fn claim(&self, note: &Note) -> redrive::Result<Vec<Task>> {
        let claimed = self.store.claim_due(&slices_of(&self.lane), self.node, NOW, 10_000).await?.tasks;
        let mut by_params = each_once(claimed);
        let tasks: Vec<Task> = (0..BATCH).filter_map(|n| by_params.remove(&note.params(n))).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|t| t.id).collect();
        assert_eq!(ids, note.ids, "what was acknowledged can be claimed");
        Ok(tasks)
    }

    async fn settle(&self, tasks: Vec<Task>) -> redrive::Result<()> {
        let changed = |(n, task): (usize, Task)| {
            let change = settle(&task, &Place::after_settling(n).1, NOW, 0.0);
            Settle::new(task, change)
        };
        let settles: Vec<Settle> = tasks.into_iter().enumerate().map(changed).collect();
        let wanted: Vec<Settled> = settles.iter().map(|s| Settled::Went(s.change.to)).collect();
        assert_eq!(self.store.settle(&settles, NOW).await?, wanted, "nobody else has these tasks");
        Ok(())
    }
}

fn each_once(tasks: impl IntoIterator<Item = Task>) -> HashMap<String, Task> {
    let mut by_params = HashMap::new();
    for task in tasks {
        if let Some(other) = by_params.insert(task.params.clone(), task) {
            panic!("it is there twice: {other:?}");
        }
    }
    by_params
}

/// What the workers have said: the last note of each batch.
#[derive(Default)]
struct Ledger(HashMap<(String, u32), Note>);

impl Ledger {
    fn write(&mut self, note: Note) {
        self.0.insert((note.lane.clone(), note.round), note);
    }

    /// Waits for so many notes. Fewer come only if all workers have failed, which is seen when they are joined.
    async fn hear(&mut self, notes: &mut UnboundedReceiver<Note>, progress: usize) {
        for _ in 0..progress {
            let Some(note) = notes.recv().await else { return };
            self.write(note);
        }
    }

    fn catch_up(&mut self, notes: &mut UnboundedReceiver<Note>) {
        while let Ok(note) = notes.try_recv() {
            self.write(note);
        }
    }

    async fn check(&self, db: &Db) {
        let waiting = each_once(db.store.list(&TaskFilter::default(), u32::MAX).await.unwrap());
        let letters = db.store.dead(&DeadFilter::default(), u32::MAX).await.unwrap();
        let dead = each_once(letters.into_iter().map(|letter| letter.task));
        let mut found = 0;
        for (note, n) in self.0.values().flat_map(|note| (0..BATCH).map(move |n| (note, n))) {
            let params = note.params(n);
            let rows = (waiting.get(&params), dead.get(&params));
            let place = Place::of(rows.0, rows.1);
            assert!(note.allows(n).contains(&place), "task {params} is {place:?} after {:?}", note.step);
            if let (Some(task), Some(id)) = (rows.0.or(rows.1), note.ids.get(n)) {
                assert_eq!(task.id, *id, "task {params} has the id that was acknowledged");
            }
            found += i64::from(place != Place::Nowhere);
        }
        let rows = [db.count("retry_task").await, db.count("retry_dead").await, db.count("retry_archive").await];
        assert_eq!(rows.iter().sum::<i64>(), found, "nothing is there that nobody wrote: {rows:?}");
        self.check_keys(db, &waiting).await;
        self.show(db.kind);
    }

    /// Every living task that has a key holds it, as is seen by asking for it again; nobody else holds one.
    async fn check_keys(&self, db: &Db, waiting: &HashMap<String, Task>) {
        let batch = self.0.values().flat_map(|note| (0..BATCH).map(move |n| (note, n)));
        let living = batch.filter_map(|(note, n)| Some((note.new_task(n), waiting.get(&note.params(n))?)));
        let (again, ids): (Vec<NewTask>, Vec<TaskId>) =
            living.filter(|(_, task)| task.key.is_some()).map(|(new, task)| (new, task.id)).unzip();
        assert_eq!(db.count("redrive_key").await, ids.len() as i64);
        let answers = db.store.insert(again, NOW).await.unwrap();
        assert!(answers.iter().all(|a| a.existed), "a living task does not hold its key");
        assert_eq!(answers.iter().map(|a| a.id).collect::<Vec<_>>(), ids);
    }

    fn show(&self, kind: Kind) {
        let settled = self.0.values().filter(|note| note.step == Step::Settled).count();
        let open = self.0.len() - settled;
        println!(
            "{kind:?}: {} kills, {settled} batches of {BATCH} acknowledged to their end, {open} not",
            kills(kind).count()
        );
    }
}

/// Another process of this program that works on a database; killed at the latest with this.
struct Victim(Child);

impl Victim {
    fn start(url: &str) -> Self {
        let mut run = Command::new(std::env::current_exe().unwrap());
        run.args([VICTIM_TEST, "--exact", "--nocapture"]).env(VICTIM, url);
        Self(run.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// SIGKILL after so many notes. What it said until then counts, even if it is read later.
    fn kill_after(mut self, progress: usize, ledger: &mut Ledger) {
        let mut out = BufReader::new(self.0.stdout.take().expect("its output is piped"));
        let (mut line, mut heard) = (String::new(), 0);
        while out.read_line(&mut line).unwrap() > 0 {
            if let Some(note) = Note::read(&line) {
                ledger.write(note);
                heard += 1;
                if heard == progress {
                    self.0.kill().unwrap();
                }
            }
            line.clear();
        }
        assert!(heard >= progress, "it ended by itself after {heard} notes");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
