//! Mistakes that can be switched on to show that the checks find them. Only with the feature `seeded-bugs`, which no
//! product may use.

#[cfg(feature = "seeded-bugs")]
static BLIND: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// From now on settles of this process compare the id alone: not the version, nor the owner, nor the fence.
#[cfg(feature = "seeded-bugs")]
pub fn settle_without_version() {
    BLIND.store(true, std::sync::atomic::Ordering::SeqCst);
}

#[cfg(feature = "seeded-bugs")]
pub(crate) fn is_blind() -> bool {
    BLIND.load(std::sync::atomic::Ordering::Relaxed)
}

#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn is_blind() -> bool {
    false
}
