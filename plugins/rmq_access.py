"""Who may use the console, by Airflow's auth manager. The only place that knows these functions, which are no public
interface of Airflow; an import error of this module means that no request is allowed.
"""

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from fastapi import HTTPException, Request

from rmq_store.console.access import Access

_may_see_plugins = requires_access_view(AccessView.PLUGINS)


def login(request: Request, user: GetUserDep) -> None:
    """A user who may see the plugins. Raises HTTPException: 401 without a login, 403 for others."""
    _may_see_plugins(request, user)
    request.state.rmq_user = user


def may_edit(request: Request, dag_id: str) -> bool:
    """Whether the user may trigger runs of the DAG."""
    try:
        requires_access_dag("POST", DagAccessEntity.RUN, dag_id)(request, request.state.rmq_user)
    except HTTPException as error:
        if error.status_code != 403:
            raise
        return False
    return True


ACCESS = Access(dependency=login, may_edit=may_edit)
