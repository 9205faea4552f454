from sqlalchemy import Column, Integer, String, create_engine
from sqlalchemy.orm import declarative_base
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette
from starlette_admin.contrib.sqla import Admin, ModelView

Base = declarative_base()
engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)


class Gauge(Base):
    __tablename__ = "gauges"
    id = Column(Integer, primary_key=True)
    name = Column(String)


Base.metadata.create_all(engine)
app = Starlette()
admin = Admin(engine, title="Gauges")
admin.add_view(ModelView(Gauge))
admin.mount_to(app)
