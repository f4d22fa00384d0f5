//! Database URLs: which database, which hosts, and how to show one without its password.

use crate::error::{Error, Result};

use super::db::Dialect;

/// A database URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) dialect: Dialect,
    /// One URL a host, in the order in which they are tried, as sqlx wants them.
    pub(super) hosts: Vec<String>,
    /// To be shown: without the password.
    pub(super) shown: String,
}

impl Url {
    /// `scheme://[user[:password]@]host[:port][,host[:port]…]/database[?options]`, or `sqlite:…`.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| unknown_scheme(""))?;
        let dialect = match scheme {
            "sqlite" => Dialect::Sqlite,
            "postgres" | "postgresql" => Dialect::Postgres,
            "mysql" | "mariadb" => Dialect::MySql,
            other => return Err(unknown_scheme(other)),
        };
        if dialect == Dialect::Sqlite {
            return Ok(Self { dialect, hosts: vec![url.into()], shown: url.into() });
        }
        let rest =
            rest.strip_prefix("//").ok_or_else(|| Error::invalid("url", format!("must begin with {scheme}://")))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if path.contains('@') {
            // Then the slash or the question mark was one of the password, and what follows would be shown.
            return Err(Error::invalid("url", "a / ? # or @ in its password must be written as %2F, %3F, %23 or %40"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        if hosts.split(',').any(str::is_empty) {
            return Err(Error::invalid("url", "has an empty host"));
        }
        check_options(dialect, path)?;
        let scheme = if dialect == Dialect::MySql { "mysql" } else { scheme }; // sqlx does not know mariadb://
        let user = login.split([':', '@']).next().unwrap_or_default();
        let shown_login = match (login.is_empty(), login.contains(':')) {
            (true, _) => String::new(),
            (false, true) => format!("{user}:***@"),
            (false, false) => format!("{user}@"),
        };
        // Options may hold secrets (`?password=…`), so they are not shown either.
        let shown_path = path.split('?').next().unwrap_or_default();
        Ok(Self {
            dialect,
            hosts: hosts.split(',').map(|host| format!("{scheme}://{login}{host}{path}")).collect(),
            shown: format!("{scheme}://{shown_login}{hosts}{shown_path}"),
        })
    }
}

/// An option that is not known would be passed over, and `sslmod=verify-full` connect to anybody.
fn check_options(dialect: Dialect, path: &str) -> Result<()> {
    let Some((_, options)) = path.split_once('?') else { return Ok(()) };
    let known = if dialect == Dialect::MySql { MYSQL_OPTIONS } else { POSTGRES_OPTIONS };
    let names = options.split('&').filter_map(|option| option.split('=').next()).filter(|name| !name.is_empty());
    let is_known = |name: &str| known.contains(&name) || dialect == Dialect::Postgres && name.starts_with("options[");
    match names.into_iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let name = crate::task::storable(name, 40);
            Err(Error::invalid("url", format!("{name:?} is not one of its options; there are {}", known.join(", "))))
        }
    }
}

/// As sqlx knows them.
const POSTGRES_OPTIONS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];
const MYSQL_OPTIONS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslca",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "charset",
    "collation",
    "statement-cache-capacity",
    "socket",
    "timezone",
    "time-zone",
];

fn unknown_scheme(scheme: &str) -> Error {
    Error::invalid(
        "url",
        format!(
            "unknown scheme {scheme:?}; use sqlite://file.db, sqlite::memory:, postgres://user@host/database, \
             mysql://user@host/database or mariadb://user@host/database"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_are_an_ordered_list() {
        let url = Url::parse("postgres://me:secret@a:1,b,[::1]:3/db?sslmode=disable").unwrap();
        assert_eq!(url.hosts, ["a:1", "b", "[::1]:3"].map(|h| format!("postgres://me:secret@{h}/db?sslmode=disable")));
        assert_eq!(url.shown, "postgres://me:***@a:1,b,[::1]:3/db");
    }

    #[test]
    fn schemes() {
        for (url, dialect) in [
            ("sqlite::memory:", Dialect::Sqlite),
            ("sqlite://x.db", Dialect::Sqlite),
            ("postgresql://h/d", Dialect::Postgres),
            ("mariadb://h/d", Dialect::MySql),
        ] {
            assert_eq!(Url::parse(url).unwrap().dialect, dialect, "{url}");
        }
        assert_eq!(Url::parse("mariadb://h/d").unwrap().hosts, ["mysql://h/d"]);
        for bad in ["", "nonsense", "oracle://h/d", "postgres:h/d", "mysql://a,,b/d", "postgres://"] {
            assert!(Url::parse(bad).is_err(), "{bad:?}");
        }
        let said = Url::parse("oracle://me:secret@h/d").unwrap_err().to_string();
        assert!(said.contains("oracle") && !said.contains("secret"), "{said}");
    }

    #[test]
    fn an_option_that_is_not_known_is_refused() {
        for good in [
            "postgres://h/d?sslmode=require&options[statement_timeout]=5s",
            "mysql://h/d?ssl-ca=/x.pem",
            "mysql://h/d?",
        ] {
            assert!(Url::parse(good).is_ok(), "{good}");
        }
        for bad in
            ["postgres://h/d?sslmod=verify-full", "mysql://h/d?sslmode=required&ssl_ca=x", "mariadb://h?pasword=S3CRET"]
        {
            let said = Url::parse(bad).unwrap_err().to_string();
            assert!(said.contains("sslmode") && !said.contains("S3CRET"), "{said}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_password_is_never_shown(scheme in "postgres|mysql|mariadb|oracle|x", password in "[!-~]{0,3}S3CR[!-~]{0,3}ET5[!-~]{0,3}") {
            let shown = match Url::parse(&format!("{scheme}://me:{password}@db.example.org:5432/app?sslmode=require")) {
                Ok(url) => url.shown,
                Err(e) => e.to_string(),
            };
            proptest::prop_assert!(!shown.contains("S3CR") && !shown.contains("ET5"), "{shown}");
        }
    }
}
