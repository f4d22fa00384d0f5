//! Tokens for the API.

use redrive::store::{AuditFilter, Role};

use crate::harness::*;

stores!(a_token_is_found_by_its_secret_alone, a_token_ends, use_is_noted_once_a_minute, names_are_checked);

async fn a_token_is_found_by_its_secret_alone(db: Db) {
    let made = db.store.create_token("ci", Role::Operator, None, "ada", NOW).await.unwrap();
    let other = db.store.create_token("ci", Role::Viewer, None, "ada", later(1)).await.unwrap();
    let secret = made.secret.reveal();
    assert!(secret.starts_with(&format!("rdr_{}_", made.token.id)) && secret.len() == 4 + 16 + 1 + 43, "{secret}");
    let found = db.another().await.find_token(secret, NOW).await.unwrap().unwrap();
    assert_eq!((found.id, found.role, &*found.created_by), (made.token.id.clone(), Role::Operator, "ada"));
    // The other's id with this secret, a bit more, a bit less, another case, an id alone.
    let (_, bare) = secret.rsplit_once(&format!("{}_", made.token.id)).unwrap();
    let wrong = [
        format!("rdr_{}_{bare}", other.token.id),
        format!("{secret}A"),
        secret[..secret.len() - 1].to_owned(),
        secret.to_uppercase(),
        format!("rdr_{}_", made.token.id),
        format!("rdr_' OR '1'='1_{bare}"),
        String::new(),
    ];
    for wrong in wrong {
        assert_eq!(db.store.find_token(&wrong, NOW).await.unwrap(), None, "{wrong}");
    }
    assert_eq!(db.count(&format!("redrive_token WHERE hash LIKE '%{bare}%'")).await, 0, "it is not stored");
    let shown =
        format!("{made:?} {:?} {:?}", db.store.tokens().await, db.store.audits(&AuditFilter::default(), 9).await);
    assert!(!shown.contains(bare) && shown.contains("token.create"), "{shown}");
    assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
}

async fn a_token_ends(db: Db) {
    let brief = db.store.create_token("brief", Role::Admin, Some(later(60)), "ada", NOW).await.unwrap();
    let find = async |now| db.store.find_token(brief.secret.reveal(), now).await.unwrap().is_some();
    assert!(find(later(59)).await && !find(later(60)).await);
    let revoked = db.store.create_token("revoked", Role::Admin, None, "ada", NOW).await.unwrap();
    assert!(db.store.revoke_token(&revoked.token.id, "bob", later(1)).await.unwrap());
    assert!(!db.store.revoke_token(&revoked.token.id, "bob", later(2)).await.unwrap());
    assert!(!db.store.revoke_token("nobody", "bob", later(2)).await.unwrap());
    assert_eq!(db.store.find_token(revoked.secret.reveal(), later(2)).await.unwrap(), None);
    let listed = db.store.tokens().await.unwrap();
    let listed = listed.iter().find(|token| token.name == "revoked").unwrap();
    assert_eq!((listed.revoked_at, listed.revoked_by.as_deref()), (Some(later(1)), Some("bob")));
    let audit = db.store.audits(&AuditFilter { who: Some("bob".into()), ..AuditFilter::default() }, 9).await.unwrap();
    assert_eq!((audit.len(), &*audit[0].entry.action, &*audit[0].entry.target), (1, "token.revoke", "revoked"));
}

async fn use_is_noted_once_a_minute(db: Db) {
    let made = db.store.create_token("ci", Role::Viewer, None, "ada", NOW).await.unwrap();
    let mut noted = Vec::new();
    for now in [NOW, later(1), later(59), later(60), later(61)] {
        db.store.find_token(made.secret.reveal(), now).await.unwrap().unwrap();
        noted.push(db.store.tokens().await.unwrap()[0].last_used_at.unwrap());
    }
    assert_eq!(noted, [NOW, NOW, NOW, later(60), later(60)]);
}

async fn names_are_checked(db: Db) {
    for (name, until) in [("", None), ("a\nb", None), (&*"x".repeat(101), None), ("fine", Some(NOW))] {
        assert!(db.store.create_token(name, Role::Viewer, until, "ada", NOW).await.is_err(), "{name:?}");
    }
    assert!(db.store.create_token("fine", Role::Viewer, None, "", NOW).await.is_err());
    assert!("root".parse::<Role>().is_err() && "admin".parse::<Role>().unwrap() == Role::Admin);
    assert_eq!((db.count("redrive_token").await, db.count("redrive_audit").await), (0, 0));
}
