"""`python -m chaos.process`: `workers.process` with devices that misbehave. Celery's child imports it as well."""

from chaos import mischief
from workers import process

mischief.install()

if __name__ == "__main__":
    process.main()
