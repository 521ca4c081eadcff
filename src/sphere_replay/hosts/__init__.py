"""Learners that replay: one readable file each. SPHERE enters by the selection, not by the host."""

from sphere_replay.hosts.abs import AsymmetricBalancedReplay
from sphere_replay.hosts.der_pp import DarkExperienceReplay
from sphere_replay.hosts.er import ExperienceReplay
from sphere_replay.hosts.er_ace import AsymmetricReplay
from sphere_replay.hosts.gdumb import GDumb
from sphere_replay.hosts.host import Batch, Host, HostParts, Step, Views
from sphere_replay.hosts.no_replay import NoReplay
from sphere_replay.hosts.optimizers import OPTIMIZERS
from sphere_replay.hosts.puridiver import PuriDivER
from sphere_replay.hosts.xder import ExtendedDarkReplay

HOSTS: dict[str, type[Host]] = {
    "none": NoReplay,
    "er": ExperienceReplay,
    "er-ace": AsymmetricReplay,
    "der-pp": DarkExperienceReplay,
    "gdumb": GDumb,
    "xder": ExtendedDarkReplay,
    "puridiver": PuriDivER,
    "abs": AsymmetricBalancedReplay,
}
"""Names on the command line."""

__all__ = [
    "HOSTS",
    "OPTIMIZERS",
    "AsymmetricBalancedReplay",
    "AsymmetricReplay",
    "Batch",
    "DarkExperienceReplay",
    "ExperienceReplay",
    "ExtendedDarkReplay",
    "GDumb",
    "Host",
    "HostParts",
    "NoReplay",
    "PuriDivER",
    "Step",
    "Views",
]
