//! `soak run`: makes the database, starts the nodes, does to them what the schedule says, heals everything, waits until the
//! queue is empty, ends the nodes, and has it all checked.
//!
//! *Failure.* Whatever ends the conductor ends the rest: nodes are killed when their handles are dropped, or notice that
//! their standard input has closed; the server is stopped when its handle is dropped.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use redrive::store::Layout;
use redrive::{Store, StoreOptions, TaskId};
use tokio::process::{Child, ChildStdin, Command};

use crate::clock::{self, pause_ms};
use crate::database::{Kind, Raw, Registry, Server, signal};
use crate::evidence::Evidence;
use crate::faults::{Action, CHURN, Ground, SERVER_DEAD, Timed, churn, schedule};
use crate::ledger::{Event, Ledger};
use crate::node::Bug;
use crate::proxy::Proxy;
use crate::shares::{self, Did};
use crate::switch::Switch;
use crate::{audit, checker, failover};

/// How long the healed nodes may take to empty the queue.
const DRAIN: Duration = Duration::from_secs(120);
/// How long the nodes are left in peace after a server has died.
const GO_ON_MS: u64 = 10_000;
/// How long a node may take to end in good order.
const LEAVE: Duration = Duration::from_secs(30);

/// Run a soak and check it.
#[derive(Clone, Debug, clap::Args)]
pub struct Run {
    /// How long faults go on.
    pub seconds: u64,
    /// Where chance comes from: the same seed makes the same load and faults. Default: the time.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Which database.
    #[arg(long, value_enum, default_value = "postgres")]
    pub database: Kind,
    /// How many nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=20), conflicts_with = "churn")]
    pub nodes: u32,
    /// The number of nodes changes: 1, 8, 9, 3, each for a quarter of the time.
    #[arg(long)]
    pub churn: bool,
    /// How tasks are spread over tables.
    #[arg(long, value_enum, default_value = "single")]
    pub layout: Tables,
    /// How the nodes find each other.
    #[arg(long, value_enum, default_value = "database")]
    pub registry: Finding,
    /// Tasks that each node enqueues a second. Default: 150, on MySQL 100, on SQLite 40; with --churn a fifth of that.
    #[arg(long)]
    pub rate: Option<u64>,
    /// Make this mistake in every node; the checker must find it.
    #[arg(long, value_enum)]
    pub bug: Option<Bug>,
    /// Do no harm: load only.
    #[arg(long)]
    pub calm: bool,
    /// Several servers, which are killed one at a time: PostgreSQL with a synchronous standby, MariaDB as Galera cluster.
    #[arg(long)]
    pub cluster: bool,
    /// Each node prefers another server of the cluster.
    #[arg(long, requires = "cluster")]
    pub spread: bool,
    /// An empty directory for server and ledgers; the ledgers stay there.
    #[arg(long)]
    pub dir: PathBuf,
}

/// How tasks are spread over tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tables {
    Single,
    Monthly,
    /// First single; in the middle of the run it goes monthly.
    Switch,
}

/// How the nodes find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Finding {
    Database,
    Nacos,
}

/// So many tables a month.
pub const TABLES: u8 = 2;

impl Run {
    /// Whether the checker found nothing wrong.
    pub async fn run(self) -> anyhow::Result<bool> {
        let seed = self.seed.unwrap_or_else(clock::now);
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            passed = self.soak(seed) => passed,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    }

    async fn soak(&self, seed: u64) -> anyhow::Result<bool> {
        if self.cluster && self.database == Kind::Sqlite {
            bail!("SQLite has no cluster");
        }
        eprintln!("soak: {} s on {}, {}, seed {seed}", self.seconds, self.database.name(), self.told());
        let ledgers = self.dir.join("ledgers");
        std::fs::create_dir_all(&ledgers)?;
        let server = start_server(self.database, self.cluster, self.dir.join("db")).await?;
        let url = make_database(&server, self.members(), self.layout).await?;
        let registry = self.start_registry().await?;
        let servers = server.count();
        let mut cluster = Cluster::start(self, seed, server, registry, ledgers.clone()).await?;
        cluster.switch = (self.layout == Tables::Switch).then(|| Switch::new(self, &url));
        cluster.suffer(&self.actions(seed, servers)).await?;
        let url = cluster.server.as_ref().map_or(Ok(url), |server| server.root_url("soak"))?; // the primary may be another
        let mut raw = Raw::connect(self.database, &url).await?;
        cluster.drain(&mut raw, &url).await?;
        let end = clock::now();
        cluster.end().await?;
        let mut evidence = Evidence::collect(self.database, &ledgers, &mut raw).await?;
        evidence.complaints = std::mem::take(&mut cluster.complaints);
        if self.churn {
            let (waits, missed) = shares::measure(&evidence, &cluster.did, self.beat_ms(), CHURN[0], end);
            evidence.waits = waits;
            evidence.complaints.extend(missed);
        }
        let report = checker::check(&evidence);
        report.print(&evidence, &cluster.figures, seed, &ledgers.join("violations"));
        failover::print(&evidence);
        Ok(report.violations.is_empty())
    }

    /// How many nodes there are at the most.
    fn members(&self) -> usize {
        if self.churn { CHURN.into_iter().max().unwrap_or(1) } else { self.nodes as usize }
    }

    /// What is to happen, and when.
    fn actions(&self, seed: u64, servers: usize) -> Vec<Timed> {
        let ground = Ground { servers, registry: self.registry == Finding::Nacos, lease_ms: self.beat_ms() * 6 };
        let time = self.seconds * 1_000;
        match (self.churn, self.calm) {
            (true, calm) => churn(seed, time, ground, calm),
            (false, true) => Vec::new(),
            (false, false) => schedule(seed, time, self.members(), ground),
        }
    }

    /// What kind of run it is, for people.
    fn told(&self) -> String {
        let nodes = if self.churn { CHURN.map(|n| n.to_string()).join(" -> ") } else { self.nodes.to_string() };
        let layout = match self.layout {
            Tables::Single => "one table",
            Tables::Monthly => "monthly tables",
            Tables::Switch => "one table, then monthly ones",
        };
        format!("{nodes} nodes, {layout}, registry {:?}", self.registry).to_lowercase()
    }

    fn rate(&self) -> u64 {
        let of_three = match self.database {
            Kind::Postgres => 150,
            Kind::Mariadb => 100,
            Kind::Sqlite => 40,
        };
        self.rate.unwrap_or(if self.churn { of_three / 5 } else { of_three })
    }

    /// How often nodes beat: more often than in earnest, so that much happens in a run. Nine of them on a small machine need longer
    /// for everything.
    fn beat_ms(&self) -> u64 {
        if self.churn { 1_000 } else { 500 }
    }

    async fn start_registry(&self) -> anyhow::Result<Option<Registry>> {
        if self.registry == Finding::Database {
            return Ok(None);
        }
        let dir = self.dir.join("registry");
        tokio::task::spawn_blocking(move || Registry::start_new(dir)).await?.map(Some)
    }
}

async fn start_server(kind: Kind, is_cluster: bool, dir: PathBuf) -> anyhow::Result<Server> {
    tokio::task::spawn_blocking(move || Server::start_new(kind, is_cluster, dir)).await?
}

/// The tables, the witness, and a user for each node: so the witness can tell who did it. Each may do everything, for each may
/// be the one that makes the tables of a new month.
async fn make_database(server: &Server, nodes: usize, layout: Tables) -> anyhow::Result<String> {
    let kind = server.kind;
    if kind != Kind::Sqlite {
        let first = if kind == Kind::Postgres { "postgres" } else { "mysql" };
        let mut root = Raw::connect(kind, &server.root_url(first)?).await?;
        root.run("CREATE DATABASE soak").await?;
        for n in 1..=nodes {
            root.run(&match kind {
                Kind::Postgres => format!("CREATE ROLE node_{n} LOGIN SUPERUSER"),
                _ => format!("CREATE USER 'node_{n}'@'%'; GRANT ALL ON soak.* TO 'node_{n}'@'%'"),
            })
            .await?;
        }
    }
    let url = server.root_url("soak")?;
    let mut options = StoreOptions::default();
    options.layout = (layout == Tables::Monthly).then_some(Layout::Monthly { tables: TABLES });
    Store::open_with(&url, options).await?.close().await;
    let mut raw = Raw::connect(kind, &url).await?;
    audit::install(kind, &mut raw).await?;
    Ok(url)
}

/// The nodes, their wires, and the server.
struct Cluster<'a> {
    run: &'a Run,
    seed: u64,
    ledgers: PathBuf,
    server: Option<Server>,
    registry: Option<Registry>,
    /// Of each node, one to each server.
    proxies: Vec<Vec<Proxy>>,
    nodes: Vec<Member>,
    ledger: Ledger,
    /// The change of the layout, if there is to be one.
    switch: Option<Switch>,
    /// All that was done.
    did: Vec<Did>,
    /// How often each kind of fault came, and the like.
    figures: BTreeMap<&'static str, u32>,
    /// What should not have happened to the processes.
    complaints: Vec<String>,
    bar: ProgressBar,
}

#[derive(Default)]
struct Member {
    generation: u32,
    child: Option<Child>,
    /// Its next process is to begin when this one has ended; with this offset, since then.
    wanted: Option<(i64, u64)>,
    /// Apart from the child, since waiting for that would close it.
    stdin: Option<ChildStdin>,
}

impl Member {
    fn pid(&self) -> String {
        self.child.as_ref().and_then(Child::id).map_or_else(String::new, |pid| pid.to_string())
    }
}

impl<'a> Cluster<'a> {
    async fn start(
        run: &'a Run,
        seed: u64,
        server: Server,
        registry: Option<Registry>,
        ledgers: PathBuf,
    ) -> anyhow::Result<Self> {
        let ports = server.ports()?;
        let mut proxies = Vec::new();
        for n in 0..run.members() {
            let mut wires = Vec::new();
            // The last node of a cluster has none: there a dead server refuses connections, which no proxy can imitate.
            for port in ports.iter().filter(|_| !server.is_cluster || n + 1 < run.members()) {
                wires.push(Proxy::start(([127, 0, 0, 1], *port).into()).await?);
            }
            proxies.push(wires);
        }
        let ledger = Ledger::open(&ledgers.join("conductor.ledger"))?;
        let style = ProgressStyle::with_template("{elapsed_precise} [{wide_bar}] {msg}")?;
        let bar = ProgressBar::new(run.seconds).with_style(style);
        let mut cluster = Self {
            run,
            seed,
            ledgers,
            server: Some(server),
            registry,
            proxies,
            nodes: (0..run.members()).map(|_| Member::default()).collect(),
            ledger,
            switch: None,
            did: Vec::new(),
            figures: BTreeMap::new(),
            complaints: Vec::new(),
            bar,
        };
        for n in 0..if run.churn { CHURN[0] } else { run.members() } {
            cluster.spawn(n, 0)?;
        }
        Ok(cluster)
    }

    /// The next generation of a node.
    fn spawn(&mut self, n: usize, offset_ms: i64) -> anyhow::Result<()> {
        let server = self.server.as_ref().context("the server is there")?;
        let mut ports: Vec<u16> = self.proxies[n].iter().map(|proxy| proxy.port).collect();
        if ports.is_empty() {
            ports = server.ports()?;
        }
        if self.run.spread {
            let servers = ports.len();
            ports.rotate_left(n % servers);
        }
        let url = server.url(&format!("node_{}", n + 1), &ports, "soak");
        let member = &mut self.nodes[n];
        member.generation += 1;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["node", "--url", &url, "--dir"]).arg(&self.ledgers);
        for (name, value) in [
            ("--node", n as i64 + 1),
            ("--generation", member.generation.into()),
            ("--rate", self.run.rate() as i64),
            ("--offset-ms", offset_ms),
            ("--beat-ms", self.run.beat_ms() as i64),
        ] {
            command.args([name, &value.to_string()]);
        }
        command.args(["--seed", &self.seed.to_string()]);
        if let Some(registry) = &self.registry {
            command.args(["--nacos", &registry.address()?]);
        }
        if let Some(bug) = self.run.bug.and_then(|bug| clap::ValueEnum::to_possible_value(&bug)) {
            command.args(["--bug", bug.get_name()]);
        }
        let log = self.ledgers.join(format!("{}.{}.log", n + 1, member.generation));
        command.env("RUST_BACKTRACE", "0"); // panics are planned
        // In a group of its own, where Ctrl-C does not reach it: it is ours to end.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(std::fs::File::create(log)?);
        let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
        (member.stdin, member.child, member.wanted) = (child.stdin.take(), Some(child), None);
        Ok(())
    }

    /// Does what the schedule says, until the time is over. While something takes long (a server that starts), the
    /// schedule stands still: what comes next must not come all at once.
    async fn suffer(&mut self, actions: &[(u64, Action)]) -> anyhow::Result<()> {
        let mut began = clock::now();
        let mut next = actions.iter().peekable();
        loop {
            let passed = (clock::now() - began) / 1_000;
            let idle = next.peek().is_none() && self.nodes.iter().all(|node| node.wanted.is_none());
            if passed >= self.run.seconds * 1_000 && idle {
                return self.switched().await;
            }
            if passed >= self.run.seconds * 500
                && let Some(switch) = &mut self.switch
                && switch.begin()
            {
                self.say("from one table to monthly ones".into());
            }
            if let Some((_, action)) = next.next_if(|(at, _)| *at <= passed) {
                let start = clock::now();
                self.act(*action).await?;
                began += clock::now() - start;
                continue;
            }
            self.look_after()?;
            self.bar.set_position((passed / 1_000).min(self.run.seconds));
            pause_ms(20).await;
        }
    }

    async fn act(&mut self, action: Action) -> anyhow::Result<()> {
        self.say(action.to_string());
        if let Some(kind) = action.kind() {
            *self.figures.entry(kind).or_default() += 1;
        }
        let mut did = Did::begins(action, self.process(action));
        self.do_it(action).await?;
        did.until = clock::now();
        self.did.push(did);
        Ok(())
    }

    /// To which process of a node it is done.
    fn process(&self, action: Action) -> String {
        match action {
            Action::Kill(n) | Action::Leave(n) => format!("{}.{}", n + 1, self.nodes[n].generation),
            _ => String::new(),
        }
    }

    async fn do_it(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Kill(n) => self.kill(n).await?,
            Action::Leave(n) => signal("TERM", &self.nodes[n].pid()),
            Action::Spawn(n, offset) => self.nodes[n].wanted = Some((offset, clock::now())),
            Action::Freeze(n) => signal("STOP", &self.nodes[n].pid()),
            Action::Thaw(n) => signal("CONT", &self.nodes[n].pid()),
            Action::Cut(n) => self.proxies[n].iter().for_each(Proxy::cut),
            Action::Hold(n, requests, answers) => self.proxies[n].iter().for_each(|wire| wire.hold(requests, answers)),
            Action::Lose(n) => self.proxies[n].iter().for_each(|wire| wire.hold(false, true)),
            Action::Sever(n) => self.proxies[n].iter().for_each(|wire| {
                wire.cut();
                wire.mend();
            }),
            Action::Mend(n) => self.proxies[n].iter().for_each(Proxy::mend),
            Action::CutAll => self.proxies.iter().flatten().for_each(Proxy::cut),
            Action::MendAll => self.proxies.iter().flatten().for_each(Proxy::reopen),
            Action::KillServer(n) => self.kill_server(n).await?,
            Action::Rejoin(n) => self.with_server(move |server| server.rejoin(n)).await?,
            Action::Crash => self.with_server(Server::crash).await?,
            Action::Restart => self.with_server(Server::restart).await?,
            Action::KillRegistry => self.with_registry(Registry::kill).await?,
            Action::StartRegistry => self.with_registry(Registry::start).await?,
            Action::Change(_) => {} // those who come and go follow
        }
        if action.is_about_server() {
            self.say(format!("done: {action}"));
        }
        Ok(())
    }

    fn say(&self, said: String) {
        self.bar.set_message(said.clone());
        self.ledger.write(Event::Fault { said });
    }

    /// The scripts that start and stop servers block.
    async fn with_server(
        &mut self,
        f: impl FnOnce(&Server) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let server = self.server.take().context("the server is there")?;
        let (server, result) = tokio::task::spawn_blocking(move || {
            let result = f(&server);
            (server, result)
        })
        .await?;
        self.server = Some(server);
        result
    }

    async fn with_registry(&mut self, f: fn(&Registry) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Some(registry) = self.registry.take() else { return Ok(()) };
        let (registry, result) = tokio::task::spawn_blocking(move || {
            let result = f(&registry);
            (registry, result)
        })
        .await?;
        self.registry = Some(registry);
        result
    }

    /// The change of the layout, which was begun under faults, is waited for.
    async fn switched(&mut self) -> anyhow::Result<()> {
        let Some(switch) = &mut self.switch else { return Ok(()) };
        let (took, calls) = switch.end().await?;
        self.figures.insert("ms to go monthly", u32::try_from(took.as_millis())?);
        self.figures.insert("calls to go monthly", calls);
        Ok(())
    }

    async fn kill(&mut self, n: usize) -> anyhow::Result<()> {
        self.nodes[n].wanted = None;
        if let Some(mut child) = self.nodes[n].child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// The time that counts is the one when it is dead: before that it may have answered. Nothing else goes wrong until the
    /// nodes had time to go on.
    async fn kill_server(&mut self, n: usize) -> anyhow::Result<()> {
        self.with_server(move |server| server.kill_one(n)).await?;
        self.say(format!("{SERVER_DEAD} {}", n + 1));
        self.with_server(move |server| server.promote_after(n)).await?;
        pause_ms(GO_ON_MS).await;
        Ok(())
    }

    /// Of a node that was told to leave.
    async fn wait_for_end(&mut self, n: usize) -> anyhow::Result<()> {
        let Some(child) = &mut self.nodes[n].child else { return Ok(()) };
        match tokio::time::timeout(LEAVE, child.wait()).await {
            Ok(Ok(status)) if status.success() => {}
            Ok(_) => self.complaints.push(format!("node {}.{} ended badly", n + 1, self.nodes[n].generation)),
            Err(_) => {
                self.complaints.push(format!("node {}.{} did not end in 30 s", n + 1, self.nodes[n].generation));
                self.kill(n).await?;
            }
        }
        self.nodes[n].child = None;
        Ok(())
    }

    /// Starts what is wanted where the process before has ended. A node must not end by itself, and must end when told.
    fn look_after(&mut self) -> anyhow::Result<()> {
        for n in 0..self.nodes.len() {
            let (generation, wanted) = (self.nodes[n].generation, self.nodes[n].wanted);
            let status = match &mut self.nodes[n].child {
                Some(child) => child.try_wait()?,
                None if wanted.is_some() => Some(ExitStatus::default()),
                None => None,
            };
            let is_late = wanted.is_some_and(|(_, since)| u128::from(clock::now() - since) > LEAVE.as_micros());
            match (status, wanted) {
                (Some(status), None) if status.success() => self.nodes[n].child = None,
                (Some(status), wanted) => {
                    if !status.success() {
                        self.complaints.push(format!("node {}.{generation} ended badly: {status}", n + 1));
                    }
                    self.spawn(n, wanted.map_or(0, |(offset, _)| offset))?;
                }
                (None, _) if is_late => {
                    self.complaints.push(format!("node {}.{generation} did not end in 30 s", n + 1));
                    self.nodes[n].child.as_mut().map(Child::start_kill).transpose()?;
                    self.nodes[n].wanted = Some((0, clock::now()));
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Nothing new is enqueued; what nobody cancelled is cancelled; the queue must run empty.
    async fn drain(&mut self, raw: &mut Raw, url: &str) -> anyhow::Result<()> {
        self.say("healed; waiting until the queue is empty".into());
        std::fs::write(self.ledgers.join("drain"), "")?;
        let store = Store::open(url).await?;
        let began = clock::now();
        loop {
            let quiet = (0..self.nodes.len()).all(|n| self.nodes[n].child.is_none() || self.is_quiet(n));
            let left = raw.count_tasks().await?;
            if quiet && left == 0 {
                return Ok(());
            }
            if quiet {
                self.cancel_what_is_left(raw, &store).await?;
            }
            if u128::from(clock::now() - began) > DRAIN.as_micros() {
                let why = if quiet { "all is healed" } else { "an enqueue is still not answered" };
                self.complaints.push(format!("after {} s {left} tasks are left; {why}", DRAIN.as_secs()));
                return Ok(());
            }
            self.look_after()?;
            self.bar.set_message(format!("healed; {left} tasks are left"));
            pause_ms(250).await;
        }
    }

    fn is_quiet(&self, n: usize) -> bool {
        self.ledgers.join(format!("{}.{}.quiet", n + 1, self.nodes[n].generation)).exists()
    }

    /// Their producers were killed before they could cancel them.
    async fn cancel_what_is_left(&mut self, raw: &mut Raw, store: &Store) -> anyhow::Result<()> {
        let sql = "SELECT id, params_json FROM {table} WHERE params_json LIKE '%\"plan\":\"cancel\"%'";
        for row in raw.rows_of("task", sql).await? {
            let Some(id) = row[0].int() else { continue };
            let n =
                serde_json::from_str(row[1].text()).map_or_else(|_| String::new(), |call: crate::plan::Call| call.n);
            let answer = format!("{:?}", store.cancel(TaskId::from_i64(id), store.now().await?).await);
            self.ledger.write(Event::Cancelled { n, id, answer });
        }
        Ok(())
    }

    /// The nodes end in good order.
    async fn end(&mut self) -> anyhow::Result<()> {
        self.say("ending the nodes".into());
        self.nodes.iter().for_each(|node| signal("TERM", &node.pid()));
        for n in 0..self.nodes.len() {
            self.wait_for_end(n).await?;
        }
        self.bar.finish_and_clear();
        Ok(())
    }
}
