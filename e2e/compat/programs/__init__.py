"""The rows of the table, in order."""

from __future__ import annotations

from compat.programs import (
    allocators,
    caches,
    compilers,
    cpython,
    data,
    files,
    mariadb,
    postgresql,
    redis,
    runtimes,
    scripts,
    web,
)
from compat.runner import Program

PROGRAMS: tuple[Program, ...] = (
    redis.REDIS,
    caches.MEMCACHED,
    postgresql.POSTGRESQL,
    postgresql.POSTGRESQL_UNPRIVILEGED,
    mariadb.MARIADB,
    *data.ALL,
    *cpython.ALL,
    *runtimes.ALL,
    *scripts.ALL,
    *allocators.ALL,
    *files.ALL,
    *compilers.ALL,
    web.NGINX,
)
