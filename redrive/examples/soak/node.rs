//! `soak node`: a real process with an engine, handlers that follow their plans, and producers.
//!
//! It ends at SIGTERM in good order, and at once when the conductor is gone (its end of our standard input closes).

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redrive::registry::RegistryKind;
use redrive::{Clock, Context, Engine, EngineConfig, Failure, Settings, Store, StoreOptions, Task, Timestamp, Verdict};
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::pause_ms;
use crate::ledger::{Event, Ledger, Outcome};
use crate::plan::{Call, METHODS, Step};
use crate::producer::Producer;

/// A mistake to be switched on in every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Bug {
    /// Settles compare the id alone: not the version, the owner or the fence.
    SettleWithoutVersion,
}

/// Be one node (called by the conductor).
#[derive(Clone, Debug, clap::Args)]
pub struct Node {
    /// Which node, from 1.
    #[arg(long)]
    pub node: u32,
    /// Which process of this node, from 1.
    #[arg(long)]
    pub generation: u32,
    /// The database.
    #[arg(long)]
    pub url: String,
    /// Where the ledgers are.
    #[arg(long)]
    pub dir: PathBuf,
    /// Tasks to enqueue a second.
    #[arg(long)]
    pub rate: u64,
    /// Where chance comes from.
    #[arg(long)]
    pub seed: u64,
    /// How often it beats; other times follow from that.
    #[arg(long)]
    pub beat_ms: u64,
    /// How far redrive's clock is off at first.
    #[arg(long, allow_hyphen_values = true)]
    pub offset_ms: i64,
    /// Where Nacos is, if the nodes are to find each other by that.
    #[arg(long)]
    pub nacos: Option<String>,
    /// A mistake to make.
    #[arg(long)]
    pub bug: Option<Bug>,
}

/// How often a node looks which shards are its own.
const LOOK_MS: u64 = 20;

/// The settings of every node: short times, so that leases end and dead nodes are noticed many times in a run.
fn config(name: &str, beat: Duration) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.name = format!("node-{name}");
    config.concurrency = 64;
    (config.lease, config.margin, config.beat_interval) = (beat * 6, beat * 2, beat);
    (config.scan_interval, config.sweep_interval, config.grace) = (beat, beat * 4, beat * 10);
    config
}

impl Node {
    /// `1.3` is node 1 in its third generation.
    pub fn name(&self) -> String {
        format!("{}.{}", self.node, self.generation)
    }

    pub async fn run(self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        end_with_the_conductor();
        let wanted = tracing_subscriber::EnvFilter::new("redrive=warn,soak=warn,sqlx::query=warn");
        tracing_subscriber::fmt().with_env_filter(wanted).with_writer(std::io::stderr).with_ansi(false).init();
        if self.bug == Some(Bug::SettleWithoutVersion) {
            redrive::seeded::settle_without_version();
        }
        let ledger = Arc::new(Ledger::open(&self.dir.join(format!("{}.ledger", self.name())))?);
        ledger.write(Event::Born { offset_ms: self.offset_ms });
        let engine = tokio::select! {
            engine = self.start(&ledger) => engine,
            _ = terminate.recv() => return Ok(()),
        };
        tokio::spawn(tell_shards(engine.clone(), ledger.clone()));
        let producer = Producer::new(engine.clone(), ledger.clone(), &self);
        tokio::select! {
            () = producer.run() => {}
            _ = terminate.recv() => {}
        }
        engine.stop().await;
        ledger.write(Event::Stopped);
        Ok(())
    }

    /// The database may be away: it is tried again until it is there.
    async fn start(&self, ledger: &Arc<Ledger>) -> Engine {
        loop {
            match self.try_start(ledger).await {
                Ok(engine) => return engine,
                Err(e) => tracing::warn!(error = %e, "not started yet"),
            }
            pause_ms(200).await;
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        if let Some(server) = &self.nacos {
            settings.registry.kind = RegistryKind::Nacos;
            settings.registry.nacos.servers = vec![server.clone()];
        }
        settings
    }

    async fn try_start(&self, ledger: &Arc<Ledger>) -> redrive::Result<Engine> {
        let mut options = StoreOptions::default();
        (options.max_connections, options.migrate) = (12, false);
        let store = Store::open_with(&self.url, options).await?;
        let now = store.now().await?;
        let mut builder = Engine::builder(store)
            .config(config(&self.name(), Duration::from_millis(self.beat_ms)))
            .settings(self.settings());
        if self.offset_ms != 0 {
            builder = builder.clock(Clock::starting_at(Timestamp::from_millis(now.as_millis() + self.offset_ms)));
        }
        for method in METHODS {
            let ledger = ledger.clone();
            builder = builder.register(method, move |cx, call| attempt(cx, call, ledger.clone()));
        }
        builder.start().await
    }
}

/// Notes which shards of a lane are ours, whenever that changes. All nodes handle all methods, so one lane is like another.
async fn tell_shards(engine: Engine, ledger: Arc<Ledger>) {
    let mut told = (0, Vec::new());
    loop {
        let now = (engine.number().0, engine.shards(METHODS[0]));
        if now != told {
            ledger.write(Event::Owns { number: now.0, shards: now.1.clone() });
            told = now;
        }
        pause_ms(LOOK_MS).await;
    }
}

/// Whoever started us holds the other end of our standard input. Nothing is ever written there.
fn end_with_the_conductor() {
    std::thread::spawn(|| {
        _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
}

/// An attempt that has begun. Its end is always written, also if it is dropped.
struct Attempt {
    ledger: Arc<Ledger>,
    n: String,
    id: i64,
    version: i32,
    ended: bool,
}

impl Attempt {
    fn begin(task: &Task, attempt: u32, call: &Call, ledger: Arc<Ledger>) -> Self {
        let (n, id, version) = (call.n.clone(), task.id.as_i64(), task.version);
        let owner = task.locked_by.map_or(0, |number| number.0);
        ledger.write(Event::Start { n: n.clone(), id, version, attempt, owner });
        Self { ledger, n, id, version, ended: false }
    }

    fn end(&mut self, outcome: Outcome) {
        self.ended = true;
        let (n, id, version) = (self.n.clone(), self.id, self.version);
        self.ledger.write(Event::End { n, id, version, outcome });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Outcome::Dropped);
        }
    }
}

/// The handler: follows the plan.
async fn attempt(cx: Context<'_>, call: Call, ledger: Arc<Ledger>) -> Result<(), Verdict> {
    let task = cx.task().ok_or_else(|| Verdict::fatal("it is not written down"))?;
    let mut attempt = Attempt::begin(task, cx.attempt(), &call, ledger);
    let ms = Duration::from_millis;
    let broken = || Failure::retry("broken", "as planned");
    match call.plan.step(cx.attempt(), task.postponements) {
        Step::Succeed => attempt.end(Outcome::Success),
        Step::SucceedAfter(time) => {
            pause_ms(time).await;
            attempt.end(Outcome::Success);
        }
        Step::Hang => pause_ms(60_000).await,
        Step::Fail => {
            attempt.end(Outcome::Failure);
            return Err(Verdict::Failed(broken()));
        }
        Step::RetryAfter(time) => {
            attempt.end(Outcome::RetryAfter);
            return Err(Verdict::Failed(broken().after(ms(time))));
        }
        Step::Panic => {
            attempt.end(Outcome::Panic);
            panic!("as planned");
        }
        Step::Snooze(time) => {
            attempt.end(Outcome::Snooze);
            return Err(Verdict::Snooze(ms(time)));
        }
        Step::Fatal => {
            attempt.end(Outcome::Fatal);
            return Err(Verdict::fatal("as planned"));
        }
    }
    Ok(())
}
