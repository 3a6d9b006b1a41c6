//! gt-worker
