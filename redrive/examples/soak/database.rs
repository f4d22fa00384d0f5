//! The database of a run: a private server from `scripts/db` that may be killed, or a cluster from `scripts/cluster-db` whose
//! servers may be killed one at a time; and plain connections to it. And the registry, if it is to be one of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use sqlx::{AssertSqlSafe, Column as _, Connection as _, Row as _};

/// How long a server may take to shut down.
const PATIENCE_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Postgres,
    Mariadb,
    Sqlite,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Sqlite => "sqlite",
        }
    }
}

/// A server of our own in a directory of its own; stopped and removed with this. SQLite is a file in it.
#[derive(Debug)]
pub struct Server {
    pub kind: Kind,
    /// Several servers: PostgreSQL with a synchronous standby, MariaDB as Galera cluster.
    pub is_cluster: bool,
    dir: PathBuf,
}

impl Server {
    /// Starts it on no data. The server's user must be able to pass through the directories above.
    pub fn start_new(kind: Kind, is_cluster: bool, dir: PathBuf) -> anyhow::Result<Self> {
        let server = Self { kind, is_cluster, dir };
        server.start()?;
        Ok(server)
    }

    /// Also again on the same data and port, after a kill.
    pub fn start(&self) -> anyhow::Result<()> {
        if self.kind == Kind::Sqlite {
            return Ok(std::fs::create_dir_all(&self.dir)?);
        }
        self.script("start", if self.kind == Kind::Postgres { "postgres" } else { "galera" })
    }

    /// Calls `scripts/db`, or `scripts/cluster-db` with an argument.
    fn script(&self, command: &str, argument: &str) -> anyhow::Result<()> {
        match self.is_cluster {
            true => script("scripts/cluster-db", command, &self.dir, &[argument]),
            false => script("scripts/db", command, &self.dir, &["--stores", self.kind.name()]),
        }
    }

    fn number(&self, file: &str) -> anyhow::Result<u16> {
        let file = self.dir.join(file);
        Ok(std::fs::read_to_string(&file).with_context(|| file.display().to_string())?.trim().parse()?)
    }

    /// How many servers there are.
    pub fn count(&self) -> usize {
        match (self.is_cluster, self.kind) {
            (_, Kind::Sqlite) => 0,
            (false, _) => 1,
            (true, Kind::Postgres) => 2,
            (true, Kind::Mariadb) => 3,
        }
    }

    /// Where the servers listen.
    pub fn ports(&self) -> anyhow::Result<Vec<u16>> {
        if self.is_cluster {
            return (1..=self.count()).map(|n| self.number(&format!("{n}/port"))).collect();
        }
        (0..self.count()).map(|_| self.number(&format!("{}/port", self.kind.name()))).collect()
    }

    /// Where the database of the run is, for this user by these ports, the first before the others.
    pub fn url(&self, user: &str, ports: &[u16], database: &str) -> String {
        let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
        match self.kind {
            Kind::Sqlite => format!("sqlite://{}", self.dir.join("soak.db").display()),
            Kind::Postgres => format!("postgres://{user}@{hosts}/{database}"),
            Kind::Mariadb => format!("mysql://{user}@{hosts}/{database}"), // the scheme that sqlx knows
        }
    }

    /// The URL of the user who may do everything.
    pub fn root_url(&self, database: &str) -> anyhow::Result<String> {
        let user = if self.kind == Kind::Postgres { "postgres" } else { "root" };
        let ports = self.ports()?;
        let primary = if self.is_cluster { usize::from(self.number("primary")?) - 1 } else { 0 };
        Ok(self.url(user, &ports.get(primary).copied().into_iter().collect::<Vec<_>>(), database))
    }

    /// SIGKILL to one server of a cluster, for as long as nobody lets it rejoin.
    pub fn kill_one(&self, n: usize) -> anyhow::Result<()> {
        kill_processes(&self.dir.join((n + 1).to_string()))
    }

    /// If a primary was killed, another server becomes it.
    pub fn promote_after(&self, n: usize) -> anyhow::Result<()> {
        self.script("kill", &(n + 1).to_string())
    }

    /// It is back, and in step with the others.
    pub fn rejoin(&self, n: usize) -> anyhow::Result<()> {
        self.script("rejoin", &(n + 1).to_string())
    }

    /// SIGKILL to all that there is of the server, and a new one on the same data.
    pub fn crash(&self) -> anyhow::Result<()> {
        kill_processes(&self.dir)?;
        self.start()
    }

    /// A shutdown in good order, and a new server on the same data. PostgreSQL waits a minute for a client that is just
    /// connecting by a wire that holds its bytes back; we do not.
    pub fn restart(&self) -> anyhow::Result<()> {
        let pid = noted(&self.dir, self.kind.name(), "pid")?;
        signal(if self.kind == Kind::Postgres { "INT" } else { "TERM" }, &pid);
        for _ in 0..PATIENCE_MS / 20 {
            if processes(&self.dir)?.is_empty() {
                break;
            }
            crate::clock::rest_ms(20);
        }
        self.crash()
    }
}

fn kill_processes(home: &Path) -> anyhow::Result<()> {
    // A process that was just born is found in the next round.
    loop {
        let pids = processes(home)?;
        if pids.is_empty() {
            return Ok(());
        }
        pids.iter().for_each(|pid| signal("KILL", pid));
    }
}

/// The processes that work in a server's directory: both servers go there, and a dead process is nowhere.
fn processes(home: &Path) -> anyhow::Result<Vec<String>> {
    let home = home.canonicalize()?;
    let ours = |process: &Path| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&home));
    let mut pids = Vec::new();
    for process in std::fs::read_dir("/proc")? {
        let path = process?.path();
        if ours(&path) {
            pids.extend(path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    Ok(pids)
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kind == Kind::Sqlite {
            _ = std::fs::remove_dir_all(&self.dir);
        } else if let Err(e) = self.script("stop", "") {
            eprintln!("soak: {e}");
        }
    }
}

/// A server of the Nacos protocol of our own, by which the nodes find each other; stopped and removed with this.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
}

impl Registry {
    pub fn start_new(dir: PathBuf) -> anyhow::Result<Self> {
        let registry = Self { dir };
        registry.start()?;
        Ok(registry)
    }

    /// Also again, on the same port, after a kill.
    pub fn start(&self) -> anyhow::Result<()> {
        script("scripts/db", "start", &self.dir, &["--stores", NACOS])
    }

    /// SIGKILL. Returns when it is gone.
    pub fn kill(&self) -> anyhow::Result<()> {
        let pid = noted(&self.dir, NACOS, "pid")?;
        // A process that is not it any more, or is dead, has not our directory in its command line.
        let file = Path::new("/proc").join(&pid).join("cmdline");
        let dir = self.dir.to_string_lossy().into_owned();
        while std::fs::read(&file).is_ok_and(|line| String::from_utf8_lossy(&line).contains(&dir)) {
            signal("KILL", &pid);
            crate::clock::rest_ms(5);
        }
        Ok(())
    }

    /// Where the nodes find it.
    pub fn address(&self) -> anyhow::Result<String> {
        Ok(format!("127.0.0.1:{}", noted(&self.dir, NACOS, "port")?))
    }
}

const NACOS: &str = "nacos";

impl Drop for Registry {
    fn drop(&mut self) {
        if let Err(e) = script("scripts/db", "stop", &self.dir, &["--stores", NACOS]) {
            eprintln!("soak: {e}");
        }
    }
}

/// Has a script do something to a server in a directory.
fn script(name: &str, command: &str, dir: &Path, more: &[&str]) -> anyhow::Result<()> {
    let mut run = Command::new(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(name));
    run.arg(command).arg(dir).args(more).stdin(Stdio::null());
    // What it starts goes on, and would keep pipes open.
    let said = dir.with_extension("said");
    let status = run.stdout(Stdio::null()).stderr(std::fs::File::create(&said)?).status();
    if !status.with_context(|| format!("running {name}"))?.success() {
        bail!("{name} {command} {}: {}", more.join(" "), std::fs::read_to_string(&said)?);
    }
    Ok(())
}

/// What `scripts/db` has noted of one of its servers: its `port`, its `pid`.
fn noted(dir: &Path, store: &str, what: &str) -> anyhow::Result<String> {
    let file = dir.join(store).join(what);
    Ok(std::fs::read_to_string(&file).with_context(|| file.display().to_string())?.trim().to_owned())
}

/// Sends a signal. Fails only if the process has ended already, which is as good.
pub fn signal(name: &str, pid: &str) {
    _ = Command::new("sh").args(["-c", r#"kill -s "$1" "$2" 2>/dev/null"#, "sh", name, pid]).status();
}

/// A plain connection, beside redrive's.
pub enum Raw {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
    Mysql(sqlx::MySqlConnection),
}

/// A value of a row, whatever its width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

impl Value {
    pub fn int(&self) -> Option<i64> {
        if let Self::Int(n) = self { Some(*n) } else { None }
    }

    pub fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }
}

macro_rules! each {
    ($raw:expr, $c:ident => $body:expr) => {
        match $raw {
            Raw::Sqlite($c) => $body,
            Raw::Postgres($c) => $body,
            Raw::Mysql($c) => $body,
        }
    };
}

impl Raw {
    pub async fn connect(kind: Kind, url: &str) -> anyhow::Result<Self> {
        Ok(match kind {
            Kind::Sqlite => Self::Sqlite(sqlx::SqliteConnection::connect(url).await?),
            Kind::Postgres => Self::Postgres(sqlx::PgConnection::connect(url).await?),
            Kind::Mariadb => {
                let mut c = sqlx::MySqlConnection::connect(url).await?;
                // On Galera: what was committed on another server is seen here. (MariaDB always knows the variable.)
                sqlx::raw_sql("SET SESSION wsrep_sync_wait = 1").execute(&mut c).await?;
                Self::Mysql(c)
            }
        })
    }

    /// Runs statements.
    pub async fn run(&mut self, sql: &str) -> anyhow::Result<()> {
        let safe = AssertSqlSafe(sql.to_owned());
        each!(self, c => { sqlx::raw_sql(safe).execute(&mut *c).await.with_context(|| sql.to_owned())?; });
        Ok(())
    }

    /// The rows of a query, whose columns are BIGINT or text.
    pub async fn rows(&mut self, sql: &str) -> anyhow::Result<Vec<Vec<Value>>> {
        let safe = AssertSqlSafe(sql.to_owned());
        each!(self, c => {
            let rows = sqlx::raw_sql(safe).fetch_all(&mut *c).await.with_context(|| sql.to_owned())?;
            let mut all = Vec::with_capacity(rows.len());
            for row in rows {
                let mut values = Vec::with_capacity(row.len());
                for column in row.columns() {
                    let i = column.ordinal();
                    values.push(match row.try_get::<Option<i64>, _>(i) {
                        Ok(n) => n.map_or(Value::Null, Value::Int),
                        Err(_) => row.try_get::<Option<String>, _>(i)?.map_or(Value::Null, Value::Text),
                    });
                }
                all.push(values);
            }
            Ok(all)
        })
    }

    /// The tables of tasks (`task`), or of what has ended (`archive`): the single one, and those of months.
    pub async fn tables(&mut self, kind: &str) -> anyhow::Result<Vec<String>> {
        let single = format!("retry_{kind}");
        let noted = self.rows(&format!("SELECT name FROM redrive_table WHERE kind = '{kind}'")).await?;
        let monthly = noted.iter().map(|row| row[0].text().to_owned()).filter(|name| *name != single);
        Ok([single.clone()].into_iter().chain(monthly).collect())
    }

    /// The rows of a query on each of these tables, which it calls `{table}`.
    pub async fn rows_of(&mut self, kind: &str, sql: &str) -> anyhow::Result<Vec<Vec<Value>>> {
        let mut all = Vec::new();
        for table in self.tables(kind).await? {
            all.extend(self.rows(&sql.replace("{table}", &table)).await?);
        }
        Ok(all)
    }

    /// How many tasks are in the queue.
    pub async fn count_tasks(&mut self) -> anyhow::Result<i64> {
        let mut sum = 0;
        for table in self.tables("task").await? {
            sum += self.count(&table).await?;
        }
        Ok(sum)
    }

    pub async fn count(&mut self, table: &str) -> anyhow::Result<i64> {
        let rows = self.rows(&format!("SELECT CAST(COUNT(*) AS {}) FROM {table}", self.big_int())).await?;
        Ok(rows.first().and_then(|row| row.first()).and_then(Value::int).unwrap_or(0))
    }

    /// The name of a 64-bit integer in a CAST.
    pub fn big_int(&self) -> &'static str {
        if matches!(self, Self::Mysql(_)) { "SIGNED" } else { "BIGINT" }
    }
}
