//! One of several processes that guard a table, with handlers that succeed, fail, hang, and kill the process.
//!
//! ```sh
//! guard_node STORE_URL BUSINESS_URL LEDGER_DIRECTORY   # polls until it is killed, and says of each poll what it has done
//! guard_node --mark ID STORE_URL BUSINESS_URL          # marks one row as abnormal
//! ```
//!
//! What becomes of a row is written in its id (see [`script`]). Each handling is written down in the ledger, a file for each
//! process, when it begins and when it ends. The tests start three of these, let them be killed by their own handlers, start
//! others in their place, and read the ledger.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redrive::Store;
use redrive::guard::{BoxError, Guard, GuardHandler, Guards};

/// What the handler does about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    Succeeds,
    Fails,
    Hangs,
    /// Kills the process the first time; then it succeeds.
    Crashes,
}

fn script(id: i64) -> Script {
    match id % 20 {
        _ if id % 1000 == 500 => Script::Crashes,
        0..=12 => Script::Succeeds,
        13..=18 => Script::Fails,
        _ => Script::Hangs,
    }
}

struct Bills {
    directory: PathBuf,
    ledger: Mutex<std::fs::File>,
}

impl Bills {
    fn open(directory: &Path, file: &Path) -> std::io::Result<Self> {
        let ledger = Mutex::new(std::fs::OpenOptions::new().create(true).append(true).open(file)?);
        Ok(Self { directory: directory.to_owned(), ledger })
    }

    #[expect(clippy::disallowed_methods, reason = "the ledgers of several processes are compared")]
    fn write(&self, what: char, id: i64) {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut ledger = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let line = format!("{what} {id} {micros}\n");
        ledger.write_all(line.as_bytes()).unwrap_or_else(|e| panic!("the ledger cannot be written: {e}"));
    }

    fn marker(&self, what: &str, id: i64) -> PathBuf {
        self.directory.join(format!("{id}.{what}"))
    }
}

/// A handling that is under way; however it ends, that is written down.
struct Handling<'b>(&'b Bills, i64);

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        self.0.write('E', self.1);
    }
}

impl GuardHandler for Bills {
    type Id = i64;

    async fn check_status(&self, id: &i64) -> Result<bool, BoxError> {
        Ok(self.marker("done", *id).exists())
    }

    async fn handle(&self, id: &i64) -> Result<bool, BoxError> {
        self.write('B', *id);
        let handling = Handling(self, *id);
        tokio::task::yield_now().await; // others have their turn
        match script(*id) {
            Script::Fails => return Ok(false),
            Script::Hangs => std::future::pending().await,
            Script::Succeeds => {}
            Script::Crashes if self.marker("crashed", *id).exists() => {}
            Script::Crashes => {
                std::fs::write(self.marker("crashed", *id), "")?;
                kill_myself();
            }
        }
        std::fs::write(self.marker("done", *id), "")?;
        drop(handling);
        Ok(true)
    }

    fn manual_success_route(&self) -> String {
        String::new()
    }
}

/// SIGKILL: nothing is put in order.
fn kill_myself() -> ! {
    let me = std::process::id().to_string();
    _ = std::process::Command::new("kill").args(["-9", &me]).status();
    std::process::abort()
}

fn guard() -> Guard {
    Guard::table("user_bill")
        .user_field("user_id")
        .status_field("status")
        .success_value("SUCCESS")
        .fail_value("FAIL")
        .min_interval(Duration::from_secs(1))
        .timeout(Duration::from_secs(3600))
        .max_retry_count(2)
        .handle_timeout(Duration::from_secs(1))
        .concurrency(64)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["--mark", id, store, business] => mark(id, store, business).await,
        [store, business, directory] => poll(store, business, Path::new(directory)).await,
        _ => anyhow::bail!(
            "guard_node STORE_URL BUSINESS_URL LEDGER_DIRECTORY | guard_node --mark ID STORE_URL BUSINESS_URL"
        ),
    }
}

async fn mark(id: &str, store: &str, business: &str) -> anyhow::Result<()> {
    let bills = Bills::open(Path::new("."), Path::new("/dev/null"))?; // it handles none
    let guards = Guards::builder(Store::open(store).await?).guard(guard(), business, bills).by_hand().start().await?;
    for table in guards.all() {
        let marked = table.mark_abnormal(id).await?;
        let since = table.show(id).await?.columns["err_start_time"].as_str().unwrap_or_default().to_owned();
        println!("{marked} {since}");
    }
    Ok(())
}

async fn poll(store: &str, business: &str, directory: &Path) -> anyhow::Result<()> {
    let bills = Bills::open(directory, &directory.join(format!("{}.ledger", std::process::id())))?;
    let guards = Guards::builder(Store::open(store).await?).guard(guard(), business, bills).by_hand().start().await?;
    loop {
        for report in guards.poll_once().await {
            println!("{report:?}");
        }
        tokio::time::timeout(Duration::from_millis(300), std::future::pending::<()>()).await.ok();
    }
}
